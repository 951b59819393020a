"""Starting a run: what must be configured for it is said before the log knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.runtime.launch import bundle
from airflow_logio.runtime.launch.start_run import run_spec

EXCHANGE = bundle.parse_ref(f"{Path(__file__).parents[3] / 'support' / 'bundle' / 'exchange.py'}:exchange")


def start(payloads: str | None) -> dict[str, object]:
    spec = run_spec(
        bundle.load(EXCHANGE),
        EXCHANGE,
        dag_id="tests",
        dag_run_id="run",
        params={"padding": 0},
        connections={"exchange": "exchange", "warehouse": "warehouse"},
        payloads=payloads,
    )
    return dict(spec.actions)


def test_a_source_that_cannot_be_replayed_needs_a_payload_store() -> None:
    with pytest.raises(ConfigurationError) as caught:
        start(None)
    for words in (
        "source 'feed' of pipeline 'exchange'",
        "no payload store",
        "`payloads`",
        "[payloads]",
        "s3://bucket/folder",
    ):
        assert words in str(caught.value)


def test_the_first_read_action_is_asked_for_when_the_run_starts() -> None:
    assert start("/somewhere") == {"feed": {"part": 0}}
