"""Pipelines over datasets (mode ``dataframe``). DataFrames are lists; what decides about them is the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa

from airflow_logio.dataflow import (
    DatasetWriter,
    EveryEvents,
    FunctionRead,
    Pipeline,
    RangeSource,
    SparkSource,
    TableWriter,
    Tumbling,
)
from airflow_logio.dataflow.arrow_tables import schema_text
from airflow_logio.dataflow.functions.decorators import generate
from airflow_logio.dataflow.functions.function_operators import FrameOperator
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.windows import Window
from airflow_logio.driver.garbage import sweeps_of
from airflow_logio.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.protocol.values import Port
from airflow_logio.systems.connections import Connections
from airflow_logio.testing.simulator.authored_pipeline import Reads
from airflow_logio.testing.simulator.codec import Codec, PlainCodec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import (
    Batch,
    Destinations,
    GroupPlan,
    ListSource,
    Observed,
    Pair,
    Scenario,
    SourceScript,
    Systems,
    UpTo,
)
from tests.simulator.lake.lake_store import Lake
from tests.simulator.lake.published import PublishedFolder
from tests.simulator.lake.staging import StagingDatabase

Rows = Sequence[Sequence[int]]
RANGES, PER_RANGE = 54, 4
HOUR, STEP = 3600, 241
"""Seconds of a window, and between two records."""
COLUMNS = {"at": "bigint", "value": "bigint"}
ARROW = schema_text(pa.schema([("at", pa.int64()), ("value", pa.int64())]))
EFFECT, BYTES_PER_EVENT = 270, 40
"""Records of a stored effect, and bytes of its events: two files each, of three records."""
PER_WINDOW = 4
"""Events of a stored effect in a window."""


def row(number: int) -> list[int]:
    """Record `number` of the input."""
    return [number * STEP, number * 37 % 101]


INPUT = tuple([row(first + n) for n in range(PER_RANGE)] for first in range(0, RANGES * PER_RANGE, PER_RANGE))


class Ranges(RangeSource):
    """What it reads is the script of the scenario."""

    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        return start + 1

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        raise NotImplementedError


class Cleansed(FrameOperator):
    """Drops some records, and changes the others."""

    def frames(self, port: str, frame: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": [[at, value + 1] for at, value in frame if value % 5]}


class Drawn(FrameOperator):
    """A lazy frame whose records are others each time they are evaluated, as random ones are."""

    def frames(self, port: str, frame: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": _Redrawn(frame)}


class _Redrawn:
    def __init__(self, frame: Rows) -> None:
        self._frame = frame
        self._evaluations = 0

    def __iter__(self) -> Iterator[list[int]]:
        drawn, self._evaluations = self._evaluations, self._evaluations + 1
        return iter([[at, value + drawn] for at, value in self._frame])


class Totalled(FrameOperator):
    """Changes each record, and adds what an action on its input has found: the sum of the values."""

    materialize_input = True

    def frames(self, port: str, frame: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
        total = sum(value for _, value in frame)
        return {"out": [*([at, 2 * value] for at, value in frame), [-1, total]]}


@generate(mode="dataframe", many=True)
def summed(records: Any) -> Any:
    """Stands for the function of a window; `Summed` does its work on lists."""
    raise NotImplementedError


class Summed(FrameWindowOperator):
    """Per Input Set: the first time, and the sum of the values, twice; nothing for an Input Set without records."""

    def __init__(self, window: Window) -> None:
        super().__init__(summed, window)

    def run_on(self, frames: Mapping[str, Any], reads: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        held: dict[int, list[Sequence[int]]] = {}
        for place, *record in frames[self.inputs[0]]:
            held.setdefault(place, []).append(record)
        return [[place, *one] for place, records in held.items() for one in _sums(records)]


def _fetch(url: str, keys: Any) -> pa.Table:
    """Stands for what is read; the simulator answers, and otherwise each time."""
    raise NotImplementedError


@generate(mode="dataframe", reads={"answer": FunctionRead("lookup", _fetch)}, many=True)
def numbered(records: Any, answer: Any) -> Any:
    """As `summed`."""
    raise NotImplementedError


class Answered(Summed):
    """The same sums, and in the place of a time the number of the answer that the read of the job has given."""

    def __init__(self, window: Window) -> None:
        FrameWindowOperator.__init__(self, numbered, window)

    def run_on(self, frames: Mapping[str, Any], reads: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        (number,) = {number for _, number in reads["answer"]}
        sums = super().run_on(frames, reads, params)
        return [*sums, *([place, -number, len(reads["answer"])] for place in sorted({row[0] for row in sums}))]


def _sums(records: Rows) -> list[list[int]]:
    total = [min(at for at, _ in records), sum(value for _, value in records)]
    return [total, [total[0] + 1, total[1]]]


class DatasetCodec(PlainCodec):
    """Records without an order; an action without records has no body."""

    def __init__(self) -> None:
        super().__init__()
        plain = self.encode
        self.encode = lambda payload: b"" if payload is None else plain(payload)


class Effects:
    """A source whose read action returns all its records at once; an offset counts records."""

    def __init__(self, records: Rows) -> None:
        self._records = records

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        return [{"read": "all"}]

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        if offset >= len(self._records):
            return None
        rest = self._records[offset:]
        return Batch(rest, len(rest), len(self._records))


def _clean(records: Rows) -> list[list[int]]:
    return [[at, value + 1] for at, value in records if value % 5]


def _windows(records: Rows) -> list[list[list[int]]]:
    hours: dict[int, list[Sequence[int]]] = {}
    for record in records:
        hours.setdefault(record[0] // HOUR, []).append(record)
    return [_sums(hours[hour]) for hour in sorted(hours)]


# --- a lake of ranges -------------------------------------------------------------------------------------------------


RETENTION = "40s"
"""How long lineage is kept, by the clock of a simulated log: a small part of a schedule."""


def lake(name: str = "lake", source: RangeSource | None = None, retention: str | None = RETENTION) -> Pipeline:
    """A source of ranges, a chain with two writers, a border, a window of time, and both writers behind it."""
    made = Pipeline(name, connections=["folder", "warehouse", "archive"])
    raw = made.source("raw", source or Ranges())
    clean = made.operator("clean", Cleansed(), raw)
    made.writer("keep", DatasetWriter("archive", "clean"), clean)
    made.writer("log", TableWriter("warehouse", "log", COLUMNS, on_new_run="replace"), clean)
    hourly = made.operator("hourly", Summed(Tumbling("1h", on="at")), clean)
    made.writer("publish", DatasetWriter("folder", "hourly", partition_by=("at",)), hourly)
    made.writer("save", TableWriter("warehouse", "hourly", COLUMNS, on_new_run="replace"), hourly)
    made.group("ingest", raw, clean, "keep", "log")
    made.group("hourly", hourly)
    made.group("publish", "publish", "save")
    made.lineage("clean.out", "hourly.out", retention=retention)
    return made


def expected_lake(ranges: int = RANGES) -> Destinations:
    """In plain Python."""
    clean = [_clean(INPUT[number]) for number in range(ranges)]
    windows = _windows([record for event in clean for record in event])
    hours = sorted({at // HOUR for event in clean for at, _ in event})
    lineage: set[Pair] = {
        ("hourly.in", number, "hourly.out", hours.index(at // HOUR) + 1)
        for number, event in enumerate(clean, start=1)
        for at, _ in event
    }
    return Destinations(
        {"clean.out": clean, "hourly.out": windows},
        {
            "keep>archive": clean,
            "log>warehouse": [None, *clean],
            "publish>folder": windows,
            "save>warehouse": [None, *windows],
        },
        frozenset(lineage),
    )


# --- stored effects ---------------------------------------------------------------------------------------------------


def effects() -> Pipeline:
    """Two stored effects: of one the events have rows, of the other one they are part of a plan with a border of its own. A
    window with a read."""
    made = Pipeline("effects", connections=["folder", "warehouse", "lookup"])
    rows = made.source("rows", Frames())
    plan = made.source("plan", Frames())
    drawn = made.operator("drawn", Drawn(), plan)
    shaped = made.operator("shaped", Totalled(), drawn)
    counted = made.operator("counted", Answered(EveryEvents(PER_WINDOW)), rows)
    made.writer("save_rows", TableWriter("warehouse", "rows", COLUMNS, on_new_run="replace"), rows)
    made.writer("publish", DatasetWriter("folder", "shaped"), shaped)
    made.writer("save", TableWriter("warehouse", "sums", COLUMNS, on_new_run="replace"), counted)
    made.group("read", rows, "save_rows")
    made.group("shape", plan, drawn, shaped)
    made.group("count", counted)
    made.group("publish", "publish", "save")
    made.lineage("rows.out", "counted.out", retention=RETENTION)
    return made


class Frames(SparkSource):
    """What it reads is the script of the scenario. Its events are smaller than an author may make them."""

    def __init__(self) -> None:
        super().__init__(_read)
        self.bytes_per_event = BYTES_PER_EVENT


def _read(spark: Any) -> Any:
    raise NotImplementedError


STORED = [row(number) for number in range(EFFECT)]
EVENT = 6
"""Records of an event of a stored effect."""


def expected_effects(rows: int = EFFECT, plan: int = EFFECT) -> Destinations:
    """In plain Python; sums without the number of the answer."""
    read = [STORED[first : first + EVENT] for first in range(0, rows, EVENT)]
    planned = [STORED[first : first + EVENT] for first in range(0, plan, EVENT)]
    shaped = [[*([at, 2 * value] for at, value in event), [-1, sum(value for _, value in event)]] for event in planned]
    sums = [
        _sums([record for event in read[first : first + PER_WINDOW] for record in event])
        for first in range(0, len(read), PER_WINDOW)
    ]
    lineage = {("counted.in", n + 1, "counted.out", n // PER_WINDOW + 1) for n in range(len(read))}
    return Destinations(
        {"rows.out": read, "shaped.out": shaped, "counted.out": sums},
        {"save_rows>warehouse": [None, *read], "publish>folder": shaped, "save>warehouse": [None, *sums]},
        frozenset(lineage),
    )


def judge_effects(seen: Observed, codec: Codec) -> Sequence[str]:
    """All is as in plain Python, and each Output Set is made of the answer that is on record for it."""
    wanted = expected_effects(_stored(seen.read["rows"]), _stored(seen.read["plan"]))
    ports = {name: _records([body for body in seen.ports.get(name, ()) if body], codec) for name in wanted.ports}
    writes = {name: _records(seen.writes.get(name, ()), codec) for name in wanted.writes}
    sums = [sorted(one) for one in wanted.ports["counted.out"]]
    made = [[record for record in one if record[0] >= 0] for one in ports["counted.out"]]
    numbers = [[record for record in one if record[0] < 0] for one in ports["counted.out"]]
    answers = {-one[0][0]: one[0][1] for one in numbers if len(one) == 1}
    logged = {record[1]: len(one) for one in _records(seen.ports.get("counted<lookup", ()), codec) for record in one}
    others = [name for name in ("rows.out", "shaped.out") if ports[name] != _sorted(wanted.ports[name])]
    others += [
        name for name in ("save_rows>warehouse", "publish>folder") if writes[name] != _sorted(wanted.writes[name])
    ]
    return [
        *(f"{name} has other records" for name in others),
        *(["the sums are others"] if made != sums or len(numbers) != len(sums) else []),
        *(["an Output Set is not made of the answer that is on record"] if answers != logged else []),
        *(["what is written is not what was made"] if writes["save>warehouse"] != [[], *ports["counted.out"]] else []),
        *(["lineage is wrong"] if seen.lineage != _unexpired(wanted, seen) else []),
    ]


def _unexpired(wanted: Destinations, seen: Observed) -> frozenset[Pair]:
    return frozenset(pair for pair in wanted.lineage or () if pair[2:] not in seen.expired)


def _records(bodies: Sequence[bytes], codec: Codec) -> list[list[list[int]]]:
    """The records of each body, in an order of their own; an action without records has none."""
    return _sorted([codec.decode(body) if body else None for body in bodies])


def _sorted(events: Sequence[Any]) -> list[list[list[int]]]:
    return [sorted(list(record) for record in event or ()) for event in events]


# --- the scenarios ----------------------------------------------------------------------------------------------------


def _scenario(
    pipeline: Pipeline,
    sources: Mapping[str, SourceScript],
    about: str,
    **judged: Any,
) -> Scenario:
    members: Mapping[str, Operator] = pipeline.operators
    folders = {operator.connection for operator in members.values() if isinstance(operator, DatasetWriter)}
    return Scenario(
        pipeline.name,
        partial(_groups, pipeline),
        sources,
        {name: _system(name, folders, members) for name in pipeline.connections},
        codec=DatasetCodec(),
        drains=True,
        **_kept(pipeline),
        datasets=lambda world: Lake(world, members, ARROW),
        about=about,
        **judged,
    )


def _system(name: str, folders: set[str], members: Mapping[str, Operator]) -> type[ExternalSystem]:
    tables = {operator.connection for operator in members.values() if isinstance(operator, TableWriter)}
    return PublishedFolder if name in folders else StagingDatabase if name in tables else ExternalSystem


def _kept(pipeline: Pipeline) -> Mapping[str, Any]:
    """What expires and is swept, by the code of the runtime; what is kept for ever, where no scope has a retention."""
    sweeps = [sweep for group in pipeline.groups for sweep in sweeps_of(pipeline, group)]
    retention = max((sweep.retention_seconds for sweep in sweeps), default=0.0)
    if not retention:
        return {"kept": frozenset(captured(pipeline))}
    return {"retention": retention, "sweeps": [partial(sweep.batch, 0) for sweep in sweeps]}


def captured(pipeline: Pipeline) -> set[Port]:
    """Output ports whose lineage is captured."""
    return {Port(name, port) for name in pipeline.operators for port in pipeline.lineage_ports(name)[1]}


def _groups(pipeline: Pipeline, _systems: Systems) -> Sequence[GroupPlan]:
    connections = cast(Connections, Reads({}, {}))
    plans = []
    for name, group in pipeline.groups.items():
        specs, receivers = specs_of(pipeline, group.operators, connections)
        plans.append(GroupPlan(name, tuple(specs), receivers, frozenset(captured_inputs(pipeline))))
    return plans


def lake_scenario() -> Scenario:
    return lake_scenario_of(
        lake(),
        _ranges(),
        expected_lake,
        "datasets: ranges, a chain, a window of time, folders, staged tables, lineage that expires",
    )


def lake_scenario_of(
    pipeline: Pipeline, ranges: SourceScript, expected: Callable[..., Destinations], about: str
) -> Scenario:
    """The scenario of a pipeline whose source ``raw`` has an event for each range; `expected` takes the number of ranges."""
    return _scenario(
        pipeline,
        {"raw": ranges},
        about,
        expected=expected,
        expected_of=lambda read: expected(_events(read["raw"])),
    )


def effects_scenario() -> Scenario:
    return _scenario(
        effects(),
        {"rows": Effects(STORED), "plan": Effects(STORED)},
        "datasets: stored effects, whose events have rows or are part of a plan, and reads that differ each time",
        judge=judge_effects,
        deterministic=False,
    )


def _ranges() -> ListSource:
    return ListSource(tuple((records,) for records in INPUT))


def _events(read: UpTo) -> int:
    """Each range is a read action with one event."""
    return read.action + (read.offset > 0)


def _stored(read: UpTo) -> int:
    """Records of an effect that were used; a run that is wrong may have more."""
    return min(read.offset, EFFECT) if not read.action else EFFECT
