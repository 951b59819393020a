"""What a storm leaves is compared with the oracle: what was read, tables and outlets, lineage in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from airflow_logio.lineage.lineage_records import records
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.storm import outlets
from tests.support.storm.oracle import Made, Record, SourceEvent, records_of, results, spread_out
from tests.support.storm.pipelines import EVENT
from tests.support.storm.places import Place
from tests.support.storm.shape import COLUMNS, MODULUS, WEIGHTS, Chain, Kind, Outlet, Shape
from tests.support.warehouse import rows_of

Row = tuple[int, ...]
MOST_QUERIES = 20


class Answers:
    """Of a run that has ended."""

    def __init__(self, shape: Shape, place: Place, store: SqlLogStore, run: Run) -> None:
        self._shape = shape
        self._place = place
        self._store = store
        self._run = run
        self._counted = {str(row.port): row.events for row in store.progress(run.run_id) if row.direction == "out"}

    def check(self) -> None:
        """Raises AssertionError for the first difference."""
        made = results(self._shape, {chain.source: self._read(chain) for chain in self._shape.chains})
        spread = [] if self._shape.spread is None else spread_out(self._shape.spread, made)
        self._check_tables(made, spread)
        self._check_outlet(made)
        self._check_lineage(made, spread)

    # --- what was read ------------------------------------------------------------------------------------------------

    def _read(self, chain: Chain) -> Sequence[Record]:
        """All records, or, if the run was drained while the source was reading, those of the first so many events."""
        events = self._counted.get(f"{chain.source}.out", 0)
        if self._shape.drained:
            assert events < chain.events, f"{chain.source} had nothing left to read when it was drained"
        else:
            assert events == chain.events, f"{chain.source} has read {events} events of {chain.events}"
        first = records_of(self._shape.seed, chain)[: events * chain.records_per_event]
        return self._polled(chain, first) if chain.kind is Kind.POLLS else first

    def _polled(self, chain: Chain, first: Sequence[Record]) -> Sequence[Record]:
        """As the run has seen them: every poll is one look, and only one of its looks is to be seen."""
        found = sorted(self._rows(f"polled_{chain.source}").elements())
        assert [(n, key, at) for n, key, _, at in found] == [(n, key, at) for n, key, _, at in first]
        size = chain.events_per_poll * chain.records_per_event
        for begin in range(0, len(found), size):
            pairs = zip(found[begin : begin + size], first[begin : begin + size], strict=True)
            looks = {(seen[2] - given[2]) % MODULUS for seen, given in pairs}
            assert len(looks) == 1, f"{chain.source}: the poll behind record {begin} is of {len(looks)} looks"
        return [(n, key, amount, at) for n, key, amount, at in found]

    # --- outside ------------------------------------------------------------------------------------------------------

    def _check_tables(self, made: Sequence[Made], spread: Sequence[Made]) -> None:
        wanted = Counter[Row](record for one in made for record in one.records)
        if self._shape.table.lineage_column:
            numbered = Counter[Row]((*record, n) for n, one in enumerate(made, 1) for record in one.records)
            assert_same(self._rows("results", EVENT), numbered, "results with their events")
        else:
            assert_same(self._rows("results"), wanted, "results")
        if self._shape.picky:
            assert_same(self._rows("picked"), wanted, "picked")
        if self._shape.spread is not None:
            published = Counter[Row](record for one in spread for record in one.records)
            assert_same(self._rows("published"), published, "published")
        if self._shape.noise:
            noises = self._rows("noises", "noise")
            assert_same(Counter[Row]({row[:4]: n for row, n in noises.items()}), wanted, "noises")
            assert all(row[4] & 0xFF == WEIGHTS[row[1]] for row in noises), "what the atlas says"
            assert_same(self._rows("copies", "noise"), noises, "the copies")

    def _rows(self, table: str, *more: str) -> Counter[Row]:
        return Counter(rows_of(self._place.warehouse_url, f"SELECT {', '.join([*COLUMNS, *more])} FROM {table}"))

    def _check_outlet(self, made: Sequence[Made]) -> None:
        """In the order of the events, each once."""
        found = outlets.answer(self._shape.outlet, self._place.outlet) if made else []
        if self._shape.outlet is Outlet.FILES:
            assert found == [(n, one.records) for n, one in enumerate(made, 1)], "the files"
        else:
            sums = [(n, sum(record[2] for record in one.records)) for n, one in enumerate(made, 1)]
            assert found == sums, f"the outlet, {self._shape.outlet}"

    # --- lineage ------------------------------------------------------------------------------------------------------

    def _check_lineage(self, made: Sequence[Made], spread: Sequence[Made]) -> None:
        """Of every scope: from some events of its target back, and from some of its source forward."""
        target = made if self._shape.spread is None else spread
        port = f"{'spread' if self._shape.spread is not None else self._end()}.out"
        origins = self._origins(port, target)
        for number in _some(len(origins)):
            found = backward(self._store, self._run, port, number)
            assert self._sources(found.events()) == origins[number - 1], f"lineage of event {number} of {port}"
        for chain in self._shape.chains:
            for number in _some(self._counted.get(f"{chain.source}.out", 0)):
                used = forward(self._store, self._run, f"{chain.source}.out", number).events(port)
                wanted = [n for n, origin in enumerate(origins, 1) if (chain.source, number) in origin]
                assert [one.event_id for one in used] == wanted, f"what was made of event {number} of {chain.source}"

    def _origins(self, port: str, target: Sequence[Made]) -> Sequence[frozenset[SourceEvent]]:
        """Of each event of the target, by its records. Where an order is promised, the events are those of the oracle, one
        by one."""
        spread = self._shape.spread
        operator = port.partition(".")[0]
        sent = max(self._counted.get(port, 0), self._counted.get(f"merge({operator}).out", 0))
        found = [self._records(operator, number) for number in range(1, sent + 1)]
        if spread is None or spread.ordered:
            assert found == [one.records for one in target], f"{port}, event by event"
            return [one.origin for one in target]
        origin: Mapping[Record, frozenset[SourceEvent]] = {
            record: one.origin for one in target for record in one.records
        }
        return [frozenset[SourceEvent]().union(*(origin[record] for record in event)) for event in found]

    def _records(self, operator: str, number: int) -> tuple[Record, ...]:
        table = records(self._store, self._run, EventNode(Port(operator, "out"), number))
        return tuple(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))

    def _end(self) -> str:
        """The operator where the chains have met, or the last one of the only chain."""
        [chain, *others] = self._shape.chains
        return "met" if others else f"{chain.source}{len(chain.steps) - 1}"

    def _sources(self, events: Sequence[EventNode]) -> frozenset[SourceEvent]:
        names = {chain.source for chain in self._shape.chains}
        return frozenset((one.port.operator, one.event_id) for one in events if one.port.operator in names)


def _some(events: int) -> range:
    return range(1, events + 1, max(1, events // MOST_QUERIES))


def assert_same(found: Counter[Row], wanted: Counter[Row], what: str) -> None:
    assert found == wanted, f"{what}: missing {sorted(wanted - found)[:5]}, too many {sorted(found - wanted)[:5]}"
