"""Which dataset a row names: each row has files of its own, so that what goes with one row takes nothing from another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.driver.committer import serialize
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.spark.chains import Evaluated
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads import EpochPayloads, Payloads, storage
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.systems.payloads.dataset import Borrowed, Dataset
from tests.support.datasets import dataset_of
from tests.support.logs import OUT
from tests.support.own_calls import as_seen

ORDERS = pa.table({"id": list(range(100))})


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads(str(tmp_path))


@pytest.fixture
def epoch(payloads: Payloads) -> EpochPayloads:
    return payloads.epoch("run", "g", 1, 0)


def event(payload: Any) -> fx.LogEvent:
    return fx.LogEvent(Event(OUT, 1, Kind.DATA, 100, payload), ())


def write(operator: str, payload: Any) -> fx.LogWrite:
    return fx.LogWrite(operator, "wh", 1, {"action": "insert"}, 100, payload)


def named(epoch: EpochPayloads, *effects: fx.Effect) -> list[str]:
    """The references of rows, in order."""
    refs: list[str] = []
    for effect in serialize(list(effects), Bodies(epoch)):
        if isinstance(effect, fx.LogEvent):
            assert (effect.event.body, effect.event.ref is None) == (b"", False)
            refs.append(str(effect.event.ref))
        elif isinstance(effect, fx.LogWrite):
            assert effect.body == b""
            refs.append(str(effect.ref))
    return refs


def _linked(source: Any, target: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, "no links here", str(target))


@pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])
def test_every_row_that_names_the_records_has_files_of_its_own(
    payloads: Payloads, epoch: EpochPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """An event, and write actions of two tables; removed in any order, the others stay whole."""
    if not links:
        monkeypatch.setattr(storage, "os", as_seen(os, link=_linked))
    made = dataset_of(epoch, ORDERS.slice(0, 60), ORDERS.slice(60))
    refs = named(epoch, event(Evaluated(made)), write("a", Evaluated(made)), write("b", Evaluated(made)))
    assert refs[0] == str(made.reference), "what was made belongs to the first row"
    assert len(set(refs)) == 3
    inodes = {os.stat(path).st_ino for ref in refs for path in payloads.dataset("a row", ref).paths()}
    assert len(inodes) == (2 if links else 6)
    while refs:
        for ref in refs:
            assert payloads.table("a row", ref).sort_by("id").equals(ORDERS)
        payloads.remove([refs.pop(0)])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_no_event_names_belongs_to_the_write_action(epoch: EpochPayloads, tmp_path: Path) -> None:
    made = dataset_of(epoch, ORDERS)
    assert named(epoch, write("a", Evaluated(made))) == [str(made.reference)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


@pytest.mark.parametrize("of", [Borrowed, lambda made: made], ids=["of an event from the log", "written for the row"])
def test_an_event_from_the_log_keeps_its_own(
    payloads: Payloads, epoch: EpochPayloads, of: Callable[[Dataset], Any]
) -> None:
    made = dataset_of(epoch, ORDERS)
    [ref] = named(epoch, write("a", of(made)))
    is_its_own = ref != str(made.reference)
    assert is_its_own == isinstance(of(made), Borrowed)
    if is_its_own:
        payloads.remove([str(made.reference)])
    assert payloads.table("a row", ref).equals(ORDERS)
    assert Reference.parse("a row", ref).path.startswith("run/g/1/0/" + ("writes/a.wh/1" if is_its_own else "d/1"))
