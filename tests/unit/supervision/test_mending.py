"""`logio mend`: of each value that its type cannot have, what a person makes of it, and nothing else is changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.rules.row_forms import decode_header
from airflow_logio.supervision.mending import Remedy, broken, mend
from airflow_logio.systems.arrow import decode, encode
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import IN, OUT, Driver, start_driver
from tests.unit.hostile.test_values import BAD, numbers_of, text


def logged(table: pa.Table, *, payloads: Payloads | None = None, number: int = 1) -> Driver:
    """An event as an earlier version would have logged it."""
    driver = start_driver(MemoryLogStore())
    body = encode(table)
    ref = None if payloads is None else str(payloads.epoch("run", "g", 1, 0).store("bodies/sender.out/1", body))
    event = Event(OUT, number, Kind.DATA, table.num_rows, None, body if ref is None else None, {"first": 7}, ref)
    driver.session.commit([fx.LogEvent(event, (fx.Delivery(IN),))])
    return driver


def body_of(driver: Driver, number: int = 1) -> pa.Table:
    with driver.store.lineage(driver.run) as log:
        ((_, stored),) = log.bodies("sender", "out", [number])
    header = decode_header("it", *stored)
    table = decode("it", stored.body)
    assert (header.records, header.about, stored.ref) == (table.num_rows, {"first": 7}, None)
    assert header.mended is not None and "by a person" in header.mended
    return table


# What Arrow's own writer refuses, or cuts off, an earlier version could not log.
UNLOGGED = ("a list beyond", "a list that goes back", "an offset beyond", "an offset that goes back")


@pytest.mark.parametrize("remedy", [Remedy.NULL, Remedy.DROP])
@pytest.mark.parametrize("what", [name for name in BAD if name not in UNLOGGED])
def test_the_value_becomes_null_or_its_row_is_left_out(what: str, remedy: Remedy) -> None:
    made, place, _ = BAD[what]
    values = made()
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage  # which a reader of the log may not know
    table = pa.table({"n": list(range(len(values))), "v": values})
    driver = logged(table)
    with pytest.raises(LogInconsistent, match=r"has values that their type cannot have.*`logio mend`"):
        decode("event 1 of sender.out", encode(table))
    found = broken(driver.store, driver.run, OUT, 1, None)
    assert found.rows["v"][0] == place
    mend(driver.store, driver.run, found, remedy, "by a person")
    left = body_of(driver)
    bad = set(found.rows["v"])
    if remedy is Remedy.NULL:
        assert left["n"].to_pylist() == list(range(len(values)))
        assert [at for at, value in enumerate(left["v"].to_pylist()) if value is None] == sorted(bad)
    else:
        assert left["n"].to_pylist() == [n for n in range(len(values)) if n not in bad]
        assert None not in left["v"].to_pylist()
    assert left["v"].type == values.type
    with pytest.raises(ConfigurationError, match="nothing is wrong with the values of event 1"):
        broken(driver.store, driver.run, OUT, 1, None)


def test_letters_are_replaced_and_only_letters() -> None:
    driver = logged(pa.table({"s": text()}))
    said = mend(driver.store, driver.run, broken(driver.store, driver.run, OUT, 1, None), Remedy.REPLACE, "by a person")
    assert body_of(driver).to_pydict() == {"s": ["a", "\N{REPLACEMENT CHARACTER}"]}
    assert said.startswith("column 's', row 1: their letters are replaced (")
    driver = logged(pa.table({"t": BAD["24:00"][0]()}))
    with pytest.raises(ProtocolViolation, match=r"column 't' is time32\[s\]: only letters of text are replaced"):
        mend(driver.store, driver.run, broken(driver.store, driver.run, OUT, 1, None), Remedy.REPLACE, "by a person")


def test_several_columns_and_pieces_at_once() -> None:
    """Rows 1 and 4 of one column, row 2 of another; all others are as they were."""
    good = pa.array(["ä", None])
    table = pa.table(
        {
            "s": pa.chunked_array([text(), good, pa.array([], pa.string()), text().slice(1)]),
            "l": pa.ListArray.from_arrays(numbers_of(0, 1, 1, 2, 2, 2), text()),
            "n": range(5),
        }
    )
    driver = logged(table)
    found = broken(driver.store, driver.run, OUT, 1, None)
    assert dict(found.rows) == {"s": [1, 4], "l": [2]}
    mend(driver.store, driver.run, found, Remedy.DROP, "by a person")
    assert body_of(driver).to_pydict() == {"s": ["a", None], "l": [["a"], []], "n": [0, 3]}


def test_a_body_in_the_payload_store_comes_into_the_log(tmp_path: Path) -> None:
    payloads = Payloads(str(tmp_path))
    driver = logged(pa.table({"s": text()}), payloads=payloads)
    with pytest.raises(ConfigurationError, match="is in the payload store; name it"):
        broken(driver.store, driver.run, OUT, 1, None)
    found = broken(driver.store, driver.run, OUT, 1, payloads.load)
    mend(driver.store, driver.run, found, Remedy.NULL, "by a person")
    assert body_of(driver).to_pydict() == {"s": ["a", None]}


def test_what_cannot_be_mended_is_said() -> None:
    driver = logged(pa.table({"s": text()}))
    driver.session.commit([fx.LogEvent(Event(OUT, 2, Kind.END), (fx.Delivery(IN),))])
    with pytest.raises(ConfigurationError, match=r"event 2 of sender\.out has no body that could be mended"):
        broken(driver.store, driver.run, OUT, 2, None)
    with pytest.raises(ConfigurationError, match=r"has no event 3 of sender\.out in the log"):
        broken(driver.store, driver.run, OUT, 3, None)
    with pytest.raises(ConfigurationError, match=r"has no event 1 of sender\.write:wh in the log"):
        broken(driver.store, driver.run, Port("sender", "write:wh"), 1, None)
