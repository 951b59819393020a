"""Stands before each call of this process to the file system: to die there, or to let another one work meanwhile."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CALLS = ("open", "link", "replace", "unlink", "mkdir", "listdir", "scandir", "chmod", "chown", "fsync")


class Died(BaseException):
    """No handler of an error is to catch it."""


class _Steps:
    def __init__(self, at: int, then: Callable[[], None] | None) -> None:
        self._at = at
        self._then = then
        self._is_inside = False
        self.passed = 0

    def before(self) -> None:
        if self._is_inside:
            return
        self.passed += 1
        if self._then is None and self.passed >= self._at:
            raise Died  # and who is dead removes nothing on its way out
        if self._then is not None and self.passed == self._at:
            self._is_inside = True
            self._then()
            self._is_inside = False


@contextmanager
def standing(at: int, then: Callable[[], None] | None = None) -> Iterator[_Steps]:
    """Before call `at`, from 1: raise `Died`, there and at every later one, or do `then` in its place of time."""
    steps = _Steps(at, then)
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in ((os, CALLS), (builtins, ("open",))):
            for name in names:
                patch.setattr(owner, name, _counting(getattr(owner, name), steps))
        yield steps


def _counting(call: Any, steps: _Steps) -> Any:
    def counting(*arguments: Any, **settings: Any) -> Any:
        steps.before()
        return call(*arguments, **settings)

    return counting


def every_step(work: Callable[[int], bool]) -> int:
    """Do `work` for each call, until there is none of that number, which it says by False; the number of calls."""
    at = 1
    while work(at):
        at += 1
    return at - 1
