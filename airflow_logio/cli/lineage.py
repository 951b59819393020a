"""`logio lineage`: what an event was made from, or what was made from it; its records; and why a record is missing."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from airflow_logio.cli.common import LogOption, RunArgument, err, opened, out, pairs, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.lineage_tree import LINES_PER_NODE, tree_of
from airflow_logio.commands import counted
from airflow_logio.errors import LineageUnknown, LogioError, NotKept
from airflow_logio.lineage import lineage_records
from airflow_logio.lineage.event_search import Holding, events_holding
from airflow_logio.lineage.lineage_records import Elsewhere, distinct_names, effect, records, rows_at, together
from airflow_logio.lineage.record_lineage import TracedEvent, TracedRecords, records_behind
from airflow_logio.lineage.search_limits import SearchedSoFar
from airflow_logio.lineage.why_not import AnswerWatch, WhyNot, why_not
from airflow_logio.protocol.states import RunState
from airflow_logio.run_report.why_not_text import searched_said, why_not_json, why_not_lines
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.lineage.result import EventNode, InputSetNode, Lineage, Node, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.payloads import Payloads

MOST_RECORDS = 10
EVENTS_TO_READ_A_KEY_FROM = 50
"""The tree counts rows of a read action only for Input Sets of at most so many events. The API has no such bound."""
MOST_EVENTS = 20
"""Most events whose lineage is shown: to find where a number came from, more are of no use."""
EVERY_SECONDS = 0.1


def register(app: typer.Typer) -> None:
    app.command("lineage")(lineage)


def lineage(
    run: RunArgument,
    port: Annotated[str, typer.Argument(help="Output port in a lineage scope, operator.port, as its author named it")],
    event_id: Annotated[
        int | None, typer.Argument(help="Number of the event on that port, counted from 1; or give --where")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="column=value: the events that hold such a record; several must all be true of it"
        ),
    ] = None,
    is_forward: Annotated[
        bool, typer.Option("--forward/--backward", help="What was made from it / what it was made from")
    ] = False,
    to: Annotated[str | None, typer.Option(help="Follow only the paths to this port")] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records", help="Also print records; with --where, the records that the matching ones were made from"
        ),
    ] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Most records printed of each port")] = MOST_RECORDS,
    is_why_not: Annotated[
        bool, typer.Option("--why-not", help="With --where: why such a record is not there, and where it was last seen")
    ] = False,
    lines: Annotated[int, typer.Option(min=1, help="Most lines printed below each line of the tree")] = LINES_PER_NODE,
    slots: Annotated[
        bool, typer.Option("--slots", help="Also show slots, Dispatchers and Mergers of replicated groups")
    ] = False,
    log: LogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result, on standard output")] = False,
) -> None:
    """Show the events and read actions that an event was made from, or the events that were made from it."""
    if is_why_not and (not where or event_id is not None or records or is_forward):
        raise typer.BadParameter(
            "give --where column=value with it, and nothing else that chooses events", param_hint="--why-not"
        )
    _check(event_id, where, has_records=records, is_forward=is_forward)
    values = pairs("--where", where) if where else {}
    known = ConnectionUrls.load(warn)
    with opened(known.log_url(log)) as store:
        found = store.find_run(run)
        if run == f"{found.spec.key.pipeline}@{found.partition}":
            err.print(_which_run(found), markup=False)
        behind = _Records(store, found, known.payloads(log))
        if is_why_not:
            with shown_search() as watch:
                answer = why_not(store, found, port, values, behind.load, watch=watch)
            _tell_why_not(answer, as_json=as_json)
            return
        query = partial(forward if is_forward else backward, store, found, to=to, slots=slots)
        if event_id is None:
            asked = holding(store, found, port, values, behind.load, warn)
        else:
            asked = [(port, [event_id])]
        for place, ids in asked:
            result = query(place, ids)
            traced = records_behind(store, found, place, ids, values, behind.load, to) if records and values else None
            if traced is not None:
                tables = dict(traced_tables(store, found, traced, behind.load, most))
            else:
                tables = behind.samples(result, most if records else 0)
            if as_json:
                typer.echo(json.dumps(_as_json(found, result, to, tables, traced), indent=2, default=str))
            else:
                _show(result, lines, behind, tables)


def _which_run(run: Run) -> str:
    """Whose lineage is shown of a partition. The rows of its day may still be another run's."""
    said = f"partition {run.partition}: run {run.uid[:8]} ({run.spec.key}), {run.state.value}"
    if run.state in (RunState.FINISHED, RunState.QUARANTINED, RunState.SUPERSEDED):
        return said
    return f"{said}: until it has finished, tables may have what an earlier run of the partition made (`logio status`)"


def _check(event_id: int | None, where: list[str] | None, *, has_records: bool, is_forward: bool) -> None:
    if event_id is None and not where:
        raise typer.BadParameter("give the number of an event, or --where column=value", param_hint="EVENT_ID")
    if event_id is not None and where and not has_records:
        raise typer.BadParameter(
            "with the number of an event it chooses among its records: add --records to see what those were made from",
            param_hint="--where",
        )
    if where and has_records and is_forward:
        raise typer.BadParameter(
            "records are followed backward only: leave out --where or --records", param_hint="--forward"
        )


def _tell_why_not(answer: WhyNot, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(why_not_json(answer), indent=2))
        return
    for line in why_not_lines(answer):
        out.print(Text(line))
    if answer.is_there:
        out.print(Text("it is there: leave out --why-not, or add values that the missing record would have"))


# --- events that hold a record ----------------------------------------------------------------------------------------


def holding(
    store: LogStore, run: Run, port: str, values: Mapping[str, str], load: Elsewhere | None, warn: Callable[[str], None]
) -> Sequence[tuple[str, list[int]]]:
    """(port of the log, event ids) of the events that hold such a record. Raises `LineageUnknown` if none does."""
    found = events_holding(store, run, port, values, load)
    wanted = " and ".join(f"{name}={value}" for name, value in values.items())
    every = [(str(one.place), number) for one in found for number in one.records]
    gone = _gone(found, port)
    if not every:
        searched = sum(one.searched for one in found)
        raise LineageUnknown(f"none of the {searched:,} events of {port} in the log holds a record with {wanted}{gone}")
    if gone:
        warn(gone.removeprefix("; "))
    if len(every) > MOST_EVENTS:
        warn(f"{len(every):,} events of {port} hold records with {wanted}; shown are the first {MOST_EVENTS}")
    asked: dict[str, list[int]] = {}
    for place, number in every[:MOST_EVENTS]:
        asked.setdefault(place, []).append(number)
    return list(asked.items())


def _gone(found: Sequence[Holding], port: str) -> str:
    gone = sum(one.gone for one in found)
    if not gone:
        return ""
    return (
        f"; {gone:,} more events of {port} are not in the log any more: retention has removed their records together with "
        "their lineage, and nothing leads to them from a table. A scope's `retention` says for how long an event is kept; "
        "the lineage_column of a TableWriter names the event of each row, which needs no search"
    )


@contextmanager
def shown_search() -> Iterator[AnswerWatch]:
    """Show how far a search is on standard error, if that is a terminal; leaves nothing there at the end."""
    columns = (SpinnerColumn(), TextColumn("searching {task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        yield _Shown(bars, bars.add_task("...", total=None))


class _Shown(AnswerWatch):
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._shown_at = 0.0

    def looks(self, so_far: SearchedSoFar) -> None:
        now = time.monotonic()
        if now - self._shown_at >= EVERY_SECONDS:
            self._shown_at = now
            self._bars.update(self._task, description=searched_said(so_far))


# --- a result ---------------------------------------------------------------------------------------------------------


def _show(result: Lineage, lines: int, behind: _Records, samples: dict[str, pa.Table]) -> None:
    for root in result.roots:
        out.print(tree_of(result, root, lines, behind.rows_for), soft_wrap=False)  # else rich cuts what is too wide
    out.print(_summary(result))
    for name, sample in samples.items():
        out.print()
        out.print(_table(name, sample))


def _summary(result: Lineage) -> Text:
    """The totals, since the tree may be cut."""
    if not result.edges:
        way = "was made from it yet" if result.direction == "forward" else "is recorded of what it was made from"
        return Text(f"nothing {way}")
    ports: dict[str, list[EventNode]] = {}
    for event in result.events():
        if event not in result.roots:
            ports.setdefault(str(event.port), []).append(event)
    parts = [
        f"{counted(len(events), 'event')} of {name} ({counted(sum(e.records or 0 for e in events), 'record')})"
        for name, events in ports.items()
    ]
    parts.append(counted(len(result.input_sets()), "Input Set"))
    if reads := [read for read in result.reads() if not read.is_source]:
        parts.append(counted(len(reads), "read action"))
    return Text(", ".join(parts), style="dim")


def _table(name: str, sample: pa.Table) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in sample.column_names:
        table.add_column(Text(column))
    for row in sample.to_pylist():
        table.add_row(*(Text(str(value)) for value in row.values()))
    return table


class _Records:
    """The records behind a result, as far as they still exist."""

    def __init__(self, store: LogStore, run: Run, payloads: str | None) -> None:
        self._store = store
        self._run = run
        self.load = Payloads(payloads) if payloads else None

    def rows_for(self, result: Lineage, input_set: InputSetNode, read: ReadNode) -> int | None:
        """How many rows of a read action one Input Set used; None if it is unknown, or too costly to find out."""
        events = sum(isinstance(node, EventNode) for node in result.after(input_set))
        if read.records is None or events > EVENTS_TO_READ_A_KEY_FROM:
            return None
        try:
            rows: int = lineage_records.effect(self._store, self._run, read, input_set, self.load).num_rows
        except (LogioError, pa.ArrowException):
            return None
        return rows

    def samples(self, result: Lineage, many: int) -> dict[str, pa.Table]:
        """Up to `many` records of the events of each port, and of the effects of each connection that was read.

        Ports of replay operators are left out, with a warning.
        """
        found: dict[str, pa.Table] = {}
        left_out: set[str] = set()
        if many:
            for node in result.nodes():
                if isinstance(node, InputSetNode) or node.records is None or _is_source(node):
                    continue
                name = str(node.port) if isinstance(node, EventNode) else f"read {node.operator}.{node.connection}"
                if name in left_out or (name in found and found[name].num_rows >= many):
                    continue
                try:
                    found[name] = self._more(found.get(name), node, many)
                except NotKept as error:
                    left_out.add(name)
                    warn(str(error))
        return found

    def _more(self, so_far: pa.Table | None, node: EventNode | ReadNode, many: int) -> pa.Table:
        if isinstance(node, EventNode):
            table, number = lineage_records.records(self._store, self._run, node, self.load), node.event_id
        else:
            table, number = lineage_records.effect(self._store, self._run, node, load=self.load), node.action_id
        table = table.slice(0, many if so_far is None else many - so_far.num_rows)
        name = "event" if isinstance(node, EventNode) else "action"
        table = table.add_column(0, f"({name})", pa.repeat(pa.scalar(number, pa.int64()), table.num_rows))
        return table if so_far is None else together([so_far, table])


def _is_source(node: Node) -> bool:
    return isinstance(node, ReadNode) and node.is_source


def _as_json(
    run: Run, result: Lineage, to: str | None, tables: dict[str, pa.Table], traced: TracedRecords | None
) -> dict[str, Any]:
    """Nodes, and edges as pairs of their places in the list of nodes."""
    nodes = list(result.nodes())
    place = {node: index for index, node in enumerate(nodes)}
    return {
        "run": run.uid,
        "direction": result.direction.value,
        "to": to,
        "roots": [place[root] for root in result.roots],
        "nodes": [_node_json(node) for node in nodes],
        "edges": [[place[node], place[end]] for node, ends in result.edges.items() for end in ends],
        "records": {name: table.to_pylist() for name, table in tables.items()},
        **({} if traced is None else {"traced": traced_json(traced)}),
    }


def _node_json(node: Node) -> dict[str, Any]:
    match node:
        case EventNode(port, event_id, records, about):
            told = {"kind": "event", "port": str(port), "event_id": event_id, "records": records, "about": dict(about)}
            told["code"] = node.code
        case InputSetNode(operator, inset_id):
            told = {"kind": "input_set", "operator": operator, "inset_id": inset_id}
        case ReadNode(operator, connection, action_id, is_source, records, description):
            told = {
                "kind": "read_action",
                "operator": operator,
                "connection": connection,
                "action_id": action_id,
                "is_source": is_source,
                "records": records,
                "description": dict(description),
            }
    return told if node.slot is None else {**told, "slot": node.slot}


# --- records that were followed ---------------------------------------------------------------------------------------


def traced_tables(
    store: LogStore, run: Run, answer: TracedRecords, load: Elsewhere | None, many: int
) -> Iterator[tuple[str, pa.Table]]:
    """(title, the first `many` records): of what was asked for, of each port before it, and of each read action."""
    asked = "it was" if sum(0 if one.places is None else len(one.places) for one in answer.roots) == 1 else "they were"
    for port, group in _by_port((*answer.roots, *answer.origins)).items():
        is_asked = group[0] in answer.roots
        yield _title(port, group, None if is_asked else asked), _first(store, run, group, load, many)
    for read in answer.reads:
        rows, by_key = read.rows(effect(store, run, read.read, load=load))
        named = f"{read.read.operator}.{read.read.connection}"
        told = "with the keys of these records" if by_key else "perhaps not all of them were used"
        yield f"read {named}: {counted(rows.num_rows, 'row')}, {told}", rows.slice(0, many)


def _by_port(traced: Sequence[TracedEvent]) -> Mapping[str, list[TracedEvent]]:
    found = defaultdict(list)
    for one in traced:
        found[str(one.event.port)].append(one)
    for group in found.values():
        group.sort(key=lambda one: (one.event.slot or 0, one.event.event_id))
    return found


def _title(port: str, group: Sequence[TracedEvent], asked: str | None) -> str:
    """`asked`: ``it was`` of one record that was asked for, ``they were`` of several; None for these themselves."""
    many = sum(len(one.places) for one in group if one.places is not None)
    title = f"{port}: {counted(many, 'record')} of {counted(len(group), 'event')}"
    if asked is None:
        return title
    if gone := sum(one.places is None for one in group):
        title += f", and {counted(gone, 'event')} whose records are not in the log"
    doubts = list(dict.fromkeys(doubt for one in group for doubt in one.doubts))
    if not doubts:
        return f"{title}, exactly those that {asked} made from"
    return f"{title}, perhaps more than {asked} made from: {'; '.join(doubts)}"


def _first(store: LogStore, run: Run, group: Sequence[TracedEvent], load: Elsewhere | None, many: int) -> pa.Table:
    found: list[pa.Table] = []
    for one in group:
        left = many - sum(table.num_rows for table in found)
        if one.places is not None and len(one.places) and left > 0:
            places = one.places[:left].tolist()
            with suppress(NotKept, LineageUnknown):  # a writer hands on what a replay operator made
                table = distinct_names(rows_at(records(store, run, one.event, load), places))
                found.append(_numbered(table, one, places))
    return together(found)


def _numbered(table: pa.Table, one: TracedEvent, places: Sequence[int]) -> pa.Table:
    """With the event, and the row of what a source has read, or else the place in the event."""
    rows = [one.source_row(place) for place in places]
    is_known = None not in rows
    table = table.add_column(0, "(row)" if is_known else "(record)", pa.array(rows if is_known else places, pa.int64()))
    return table.add_column(0, "(event)", pa.repeat(pa.scalar(one.event.event_id, pa.int64()), len(places)))


def traced_json(answer: TracedRecords) -> dict[str, Any]:
    """Places count from 0; null where the records of an event are not in the log."""
    return {
        "exact": answer.is_exact,
        "asked": [_event_json(one) for one in answer.roots],
        "made_from": [_event_json(one) for one in answer.origins],
    }


def _event_json(one: TracedEvent) -> dict[str, Any]:
    return {
        "port": str(one.event.port),
        "event_id": one.event.event_id,
        "slot": one.event.slot,
        "records": one.in_all,
        "places": None if one.places is None else one.places.tolist(),
        "exact": one.is_exact,
        "doubts": list(one.doubts),
    }
