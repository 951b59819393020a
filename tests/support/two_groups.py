"""A small run without anybody's code: `ingest` reads and feeds `totals`, which sums up and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run, RunSpec
from tests.support.logs import Driver, replace_driver, sent, spec, start_driver

ROWS = 1_000
READ, INTO, SUMS, SAVED, WRITES = (
    Port("read", "out"),
    Port("total", "in"),
    Port("total", "out"),
    Port("save", "in"),
    Port("save", "warehouse"),
)


def two_groups(dag_run: str = "run-1") -> RunSpec:
    shapes = {
        "read": OperatorShape("ingest", outputs=("out",)),
        "total": OperatorShape("totals", {"in": "read.out"}, ("out",)),
        "save": OperatorShape("totals", {"in": "total.out"}),
    }
    return replace(spec("ingest", "totals", dag_run=dag_run), operators=shapes, actions={"read": {"rows": ROWS}})


@dataclass
class TwoGroups:
    """The run in a log, with a driver of each group; a test says what they do."""

    store: LogStore
    run: Run = field(init=False)
    drivers: dict[str, Driver] = field(init=False)

    def __post_init__(self) -> None:
        self.run = self.store.start_run(two_groups())
        self.drivers = {group: start_driver(self.store, group=group, run=self.run) for group in self.run.spec.groups}

    def send(self, events: int, records: int) -> None:
        """`ingest` has read and sent so much more."""
        self._commit("ingest", [fx.CountEvents(READ, "out", events, records, 0)])

    def use(self, events: int, records: int, *, output_sets: int = 0) -> None:
        """`totals` has acknowledged so much more, and made and written so many Output Sets of one event."""
        counts: fx.Effects = [fx.CountEvents(INTO, "in", events, records, 0)]
        if output_sets:
            made = [(SUMS, "out"), (SAVED, "in"), (WRITES, "write")]
            counts += [fx.CountEvents(port, way, output_sets, output_sets, 0) for port, way in made]
        self._commit("totals", counts)

    def hold(self, *insets: str) -> None:
        """`totals` holds an event in these Input Sets, and has logged a write action; no counter of it says more."""
        self._commit("ingest", [sent(1, receiver=INTO, sender=READ)])
        held = fx.Acknowledge(READ, INTO, 1, tuple((inset, Status.UNDONE) for inset in insets))
        self._commit("totals", [held, fx.LogWrite("save", "warehouse", 1, {}, 1, body=b"body")])

    def set_aside(self, *insets: str, error: str) -> None:
        """`totals` quarantines Input Sets that hold an event each; it has not said before that they are there."""
        self._commit("ingest", [sent(1, receiver=INTO, sender=READ)])
        held = fx.Acknowledge(READ, INTO, 1, tuple((inset, Status.UNDONE) for inset in insets))
        self._commit("totals", [held])
        self._commit("totals", [fx.SetAside("total", inset, 1, error) for inset in insets])

    def recover(self, group: str) -> None:
        """The driver dies, and the next one registers."""
        self.drivers[group] = replace_driver(self.drivers[group])

    def finish(self, groups: Iterable[str] = ("ingest", "totals")) -> None:
        for group in groups:
            self._commit(group, [fx.FinishGroup()])

    def _commit(self, group: str, effects: fx.Effects) -> None:
        self.drivers[group].session.commit(effects)
