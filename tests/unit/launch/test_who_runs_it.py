"""Whose process it is, for what is noted beside what a person has done."""

from __future__ import annotations

import os
import pwd

import pytest

from airflow_logio.launch.processes import this_person
from tests.support.own_calls import replace_call


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number that its image does not know."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    assert this_person() == pwd.getpwuid(os.getuid()).pw_name

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    replace_call(monkeypatch, pwd, "getpwuid", unknown)
    assert this_person() == f"user {os.getuid()}"
    monkeypatch.setenv("USER", "grace")
    assert this_person() == "grace"
