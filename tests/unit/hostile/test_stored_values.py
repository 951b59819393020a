"""Headers, states, run descriptions and driver configurations that are damaged, hostile, or cannot be stored at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogioError, OperatorFailed
from airflow_logio.launch.driver_config import DriverConfig, take
from airflow_logio.protocol.context import ClosedInputSets, Context, decode_state, encode_state
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.values import Kind
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.run_records import RunSpec
from airflow_logio.store.rules.described_runs import check_whole, described, encode_spec, sealed_spec
from airflow_logio.store.rules.row_forms import decode_header, encode_header
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logics import CountWindow
from tests.support.logs import spec

STATE = encode_state(
    Context(marks={"in": 4, "né": 5}, ended={"in"}, triggered=["A"], closed=ClosedInputSets({"": 3}, {"a", "b"})),
    {"events": 4, "list": [1, 2.5, "x", None, True], "map": {"k": b"bytes"}},
)
HEADER = encode_header(Kind.DATA, 3, b"body", {"table": "t", "n": [1, 2]})
SPEC = sealed_spec(encode_spec(spec()), "uid-1", 1).encode()
CONFIG = msgspec.json.encode(
    DriverConfig("sqlite:////x.db", Claim(1, "u", "g", 1, "n", False), "m", "a", "/b", {"wh": "sqlite:////w.db"})
)


def read_run(text: bytes) -> Any:
    row: Any = SimpleNamespace(
        run_id=1,
        uid="uid-1",
        pipeline="sales",
        dag_id="dag",
        dag_run_id="run-1",
        generation=1,
        partition=None,
        spec=text.decode(errors="replace"),
        state="running",
        created_at=1.0,
        ordinal=1,
        ended_at=None,
        superseded_by=None,
        because=None,
        next_allowed=None,
    )
    return check_whole(described(row))


def read_config(data: bytes, path: Path = Path("/dev/shm/logio-hostile.json")) -> DriverConfig:
    path.write_bytes(data)
    try:
        return take(path)
    finally:
        path.unlink(missing_ok=True)


READERS: dict[str, tuple[bytes, Callable[[bytes], Any], type[LogioError], str]] = {
    "state": (STATE, lambda data: decode_state("totals", data), LogInconsistent, "'totals'"),
    "header": (HEADER, lambda data: decode_header("event 7", data, b"body"), LogInconsistent, "event 7"),
    "run": (SPEC, read_run, LogInconsistent, "uid-1"),
    "configuration": (CONFIG, read_config, ConfigurationError, "logio-hostile"),
}


@pytest.mark.parametrize("name", READERS)
def test_whole_values_are_read(name: str) -> None:
    data, read, _, _ = READERS[name]
    assert read(data) is not None


@pytest.mark.parametrize("name", READERS)
def test_one_that_breaks_off_anywhere_is_refused_by_name(name: str) -> None:
    data, read, error, culprit = READERS[name]
    for length in range(len(data)):
        with pytest.raises(error, match=culprit):
            read(data[:length])


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=250, deadline=None)
def test_changed_bytes_are_read_or_refused_by_name(name: str, data: st.DataObject) -> None:
    whole, read, error, culprit = READERS[name]
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(changed))
    except error as refused:
        assert culprit in str(refused)


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_refused_by_name(name: str, data: bytes) -> None:
    _, read, error, culprit = READERS[name]
    if name == "header" and data[:1] == b"\x80":
        return  # an empty map is a header of which all is the default; its checksum is that of an empty body
    with pytest.raises(error, match=culprit):
        read(data)


DEEP = 200_000
HOSTILE: dict[str, list[bytes]] = {
    "state": [
        b"\x82\xa7context\x80\xa5state\x81\xa1a" + b"\x91" * DEEP + b"\x90",  # nested without end
        b"\x82\xa7context\x80\xa5state\xdf\xff\xff\xff\xff",  # a map of four billion
        b"\x82\xa7context\x80\xa5state\x81\xa1a\xdd\xff\xff\xff\xff",  # a list of four billion
        b"\x82\xa7context\x80\xa5state\x81\xa1a\xc6\xff\xff\xff\xff",  # four gigabytes
        b"\x82\xa7context\x80\xa5state\x81\xa2\xff\xfe\x01",  # a key that is no text
        msgspec.msgpack.encode({"context": {"marks": {"in": "four"}}, "state": {}}),
        msgspec.msgpack.encode({"context": {"marks": [1]}, "state": {}}),
        msgspec.msgpack.encode({"context": {"triggered": [1]}, "state": {}}),
        msgspec.msgpack.encode({"context": {}, "state": []}),
        msgspec.msgpack.encode({"context": {"closed": {"low": {"": 1.5}}}, "state": {}}),
        msgspec.msgpack.encode([1, 2]),
    ],
    "header": [
        b"\x81\xa5about\x81\xa1a" + b"\x91" * DEEP + b"\x90",
        b"\x81\xa5about\xdf\xff\xff\xff\xff",
        b"\x81\xa5about\x81\xa1a\xa2\xff\xfe",
        msgspec.msgpack.encode({"kind": "neither"}),
        msgspec.msgpack.encode({"records": "three"}),
        msgspec.msgpack.encode({"checksum": None}),
        msgspec.msgpack.encode({"about": []}),
    ],
    "run": [
        b'{"key": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        SPEC.replace(b'"limit":5', b'"limit":' + b"[" * DEEP + b"]" * DEEP),
        SPEC.replace(b'"groups":["g"]', b'"groups":"g"'),
        SPEC.replace(b'"recoveries":2', b'"recoveries":-2'),
        SPEC.replace(b'"recoveries":2', b'"recoveries":1e400'),
        b"[]",
        b"null",
    ],
    "configuration": [
        CONFIG.replace(b'"incarnation":1', b'"incarnation":"one"'),
        CONFIG.replace(b'"incarnation":1', b'"incarnation":1.5'),
        CONFIG.replace(b'{"wh"', b'{"a":' + b"[" * DEEP + b"]" * DEEP + b',"wh"'),
        b"\xff\xfe\x00",
        b"{}",
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, many in HOSTILE.items() for n in range(len(many))])
def test_hostile_values_are_refused_by_name(name: str, number: int) -> None:
    _, read, error, culprit = READERS[name]
    data = HOSTILE[name][number]
    assert data != READERS[name][0], "the replacement found its place"
    with pytest.raises(error, match=culprit):
        read(data)


# --- what cannot be stored is refused before a commit ------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for _ in range(depth):
        state = {"a": state}
    return state


UNSTORABLE: dict[str, dict[Any, Any]] = {
    "an object": {"a": object()},
    "a number of more than 64 bits": {"a": 1 << 70},
    "a key that is no text": {"a": {1: 2}},
    "half a surrogate pair": {"a": "\ud800"},
    "nesting without end": nested(100_000),
}


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_state_that_cannot_be_stored_names_its_operator(what: str) -> None:
    operator = OperatorProtocol(OperatorSpec("totals", ("in",), ("out",), CountWindow(3)))
    operator.state = UNSTORABLE[what]
    with pytest.raises(OperatorFailed, match="'totals' cannot be stored"):
        operator.serialized()


@pytest.mark.parametrize("what", ["an object", "a number of more than 64 bits", "half a surrogate pair"])
def test_a_description_that_cannot_be_stored_is_refused(what: str) -> None:
    with pytest.raises(LogInconsistent, match="cannot be stored"):
        encode_header(Kind.DATA, 1, b"", UNSTORABLE[what])


PARAMS: dict[str, dict[str, Any]] = {
    "nan": {"rate": float("nan")},
    "infinite": {"rate": float("inf")},
    "an object": {"a": object()},
    "half a surrogate pair": {"a": "\ud800"},
    "nesting without end": nested(100_000),
    "bytes": {"a": b"\xff"},
}


@pytest.mark.parametrize("what", PARAMS)
def test_parameters_that_would_not_come_back_are_refused(what: str) -> None:
    """JSON knows no nan: it would be null in the driver."""
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        MemoryLogStore().start_run(_with(PARAMS[what]))


def _with(params: dict[str, Any]) -> RunSpec:
    return replace(spec(), params=params)


@given(
    params=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.integers(-(2**63), 2**63 - 1)
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=5,
    )
)
@settings(max_examples=150, deadline=None)
def test_all_other_parameters_come_back(params: dict[str, Any]) -> None:
    run = MemoryLogStore().start_run(_with(params))
    assert run.spec.params == params
    assert json.loads(encode_spec(_with(params)))["params"] == params


def test_the_configuration_of_an_earlier_launcher_is_read() -> None:
    """Claims had a replica, which was 0."""
    earlier = json.loads(CONFIG)
    earlier["claim"]["replica"] = 0
    assert read_config(json.dumps(earlier).encode()) == read_config(CONFIG)
