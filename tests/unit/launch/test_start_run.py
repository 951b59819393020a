"""Starting a run: what must be configured for it is said before the log knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle
from airflow_logio.launch.start_run import run_spec

EXCHANGE = bundle.parse_ref(f"{Path(__file__).parents[2] / 'support' / 'bundle' / 'exchange.py'}:exchange")


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


@pytest.mark.parametrize(
    ("payloads", "says"),
    [
        (None, r"mode 'dataframe': .* has no payload store"),
        ("s3://bucket/folder", r"is no folder, and datasets \(mode 'dataframe'\) need one"),
        ("/data/run[1]/{x}", r"/data/run\[1\]/\{x\} has \[ \] \{ \} in its path, which Spark takes for a pattern"),
    ],
)
def test_a_group_of_data_frames_needs_a_folder_that_spark_reads(payloads: str | None, says: str) -> None:
    ref = bundle.parse_ref(f"{Path(__file__).parents[2] / 'bench' / 'pipelines' / 'orders.py'}:windows")
    with pytest.raises(ConfigurationError, match=says):
        run_spec(
            bundle.load(ref),
            ref,
            dag_id="tests",
            dag_run_id="run",
            params={"orders": "/orders", "products": "/products"},
            connections={"lake": "lake"},
            payloads=payloads,
        )
