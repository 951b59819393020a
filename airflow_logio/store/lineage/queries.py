"""Data lineage queries (Section 7.3): which events and read actions an event was made from, or what was made from it.

Event 4711 of port ``hourly.out``, back to the events of the source, and on to what the first of those went into::

    from airflow_logio.store.lineage.queries import backward, forward
    from airflow_logio.store import open_store

    store = open_store("postgresql://me@host/logio")
    origin = backward(store, "manual__2026-11-21", "hourly.out", 4711, to="ingest.out")
    for event in origin.events("ingest.out"):
        print(event, event.records, "records, rows", event.about["first"], "to", event.about["last"])
    for read in origin.reads():
        print(read, read.description, read.records)
    used = forward(store, "manual__2026-11-21", "ingest.out", origin.events("ingest.out")[0].event_id)
    print([event.event_id for event in used.events("hourly.out")])

The records of an event and the effect of a read action, as Arrow tables: `airflow_logio.lineage.lineage_records`.

The graph of a run is in the log, so no code of its author is needed. The number of statements depends on the number of
ports, not on how many events there are (one statement takes thousands of them) or on the paths between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from airflow_logio.errors import LineageUnknown
from airflow_logio.protocol.replicas import is_merger
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.lineage.authored import AuthoredPorts, as_authored
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, KnownNames, Lineage, Node, ReadNode
from airflow_logio.store.lineage.walk import Edges, walk
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import read_channel

EventIds = int | Collection[int]
AnyPort = Port | str
"""A port, or ``operator.port``."""


def backward(
    store: LogStore,
    run: Run | str,
    port: AnyPort,
    event_id: EventIds,
    to: AnyPort | None = None,
    *,
    slots: bool = False,
) -> Lineage:
    """What one event of an output port, or several, were made from, recursively along the lineage paths.

    With `to`, only along the paths that come from that port; without, as far as lineage was captured. `run` is given as
    for `LogStore.find_run`. The answer has the ports that the pipeline's author drew. With `slots`, it has those of the
    log: of every slot of a replicated group, of Dispatchers and of Mergers. Raises `LineageUnknown` for a port outside
    every scope, for an event that is not in the log (any more) and for ports without a path. Also raises `UnknownRun`
    and `LogUnavailable`.
    """
    return _query(store, run, Direction.BACKWARD, port, event_id, to, slots)[0]


def forward(
    store: LogStore,
    run: Run | str,
    port: AnyPort,
    event_id: EventIds,
    to: AnyPort | None = None,
    *,
    slots: bool = False,
) -> Lineage:
    """What was made so far from one event of an output port, or from several: `backward` in the other direction."""
    return _query(store, run, Direction.FORWARD, port, event_id, to, slots)[0]


def step(
    store: LogStore,
    run: Run,
    direction: Direction,
    port: AnyPort,
    event_id: EventIds,
    *,
    most_rows: int,
    slots: bool = False,
) -> tuple[Lineage, bool]:
    """One step of `backward` or `forward`: to the events that a generation of the next operator has used, or made, and its
    read actions; and whether there may be more than these.

    It takes at most `most_rows` rows of each statement, however many there are. Raises as `backward`.
    """
    return _query(store, run, direction, port, event_id, None, slots, most_rows)


def _query(
    store: LogStore,
    run: Run | str,
    direction: Direction,
    port: AnyPort,
    event_id: EventIds,
    to: AnyPort | None,
    slots: bool,
    most_rows: int | None = None,
) -> tuple[Lineage, bool]:
    """The answer, and whether it may be cut."""
    found = store.find_run(run) if isinstance(run, str) else run
    ports = CapturedPorts(found)
    begin, end = ports.checked(port), None if to is None else ports.checked(to)
    ids = sorted({event_id} if isinstance(event_id, int) else set(event_id))
    with store.lineage(found) as log:
        log.most_rows = most_rows
        edges, is_cut = walk(log, ports, direction, begin, ids, end, one_step=most_rows is not None)
        log.most_rows = None
        _check_events(log, begin, ids)
        result = _described(log, direction, [EventNode(begin, number) for number in ids], edges, slots)
    return (result if slots else as_authored(result, found)), is_cut


def _check_events(log: LineageLog, port: Port, ids: Collection[int]) -> None:
    kinds = {number: header.kind for number, header in log.headers(port.operator, port.name, ids)}
    missing = next((number for number in ids if kinds.get(number) is not Kind.DATA), None)
    if missing is None:
        return
    sent, key = max(log.sent(port), log.newest_by([port])[port]), log.run.spec.key
    port = AuthoredPorts(log.run.spec.operators).seen(port)
    if missing in kinds:
        raise LineageUnknown(f"number {missing} of {port} in run {key} is the end of its stream, and no event")
    if 1 <= missing <= sent:
        raise LineageUnknown(
            f"event {missing} of {port} in run {key} is not in the log any more: retention has removed it, with its "
            "lineage. A scope's declaration says how long it keeps events"
        )
    extent = f"its events so far have numbers up to {sent:,}" if sent else "the port has sent none so far"
    raise LineageUnknown(f"run {key} has no event {missing} of {port}; {extent}")


def _described(log: LineageLog, direction: Direction, roots: Iterable[EventNode], edges: Edges, slots: bool) -> Lineage:
    """The result: its nodes, with what the log says about them."""
    bare = dict.fromkeys([*roots, *edges, *(end for ends in edges.values() for end in ends)])
    full: dict[Node, Node] = {node: node for node in bare}
    full |= _events(log, [node for node in bare if isinstance(node, EventNode)])
    if not slots:
        full |= _merged(log, [node for node in full.values() if isinstance(node, EventNode)])
    full |= _reads(log, [node for node in bare if isinstance(node, ReadNode)])
    begun = tuple(node for root in roots if isinstance(node := full[root], EventNode))
    return Lineage(
        direction,
        begun,
        {full[node]: tuple(full[end] for end in sorted(ends, key=_place)) for node, ends in edges.items()},
        _names(log.run),
    )


def _names(run: Run) -> KnownNames:
    ports = (f"{name}.{port}" for name, shape in run.spec.operators.items() for port in shape.outputs)
    return KnownNames(str(run.spec.key), frozenset(ports))


def _place(node: Node) -> tuple[int, str, str, int]:
    """The sort key of nodes that are beside each other: the same order on every store."""
    match node:
        case EventNode(port, event_id):
            return 0, port.operator, port.name, event_id
        case InputSetNode(operator, inset_id):
            return 1, operator, inset_id, 0
        case ReadNode(operator, connection, action_id):
            return 2, operator, connection, action_id


def _events(log: LineageLog, nodes: Iterable[EventNode]) -> dict[Node, Node]:
    by_port: dict[Port, dict[int, EventNode]] = defaultdict(dict)
    for node in nodes:
        by_port[node.port][node.event_id] = node
    return {
        group[event_id]: replace(group[event_id], records=header.records, about=header.about, code=header.code)
        for port, group in by_port.items()
        for event_id, header in log.headers(port.operator, port.name, group)
    }


def _merged(log: LineageLog, nodes: Iterable[EventNode]) -> dict[Node, Node]:
    """What a Merger has passed on, with the number of the code that made it in a slot: the Merger is of another group.

    Where lineage begins behind the Merger, it is not captured what was merged, and the number stays that of the Merger.
    """
    by_port: dict[Port, dict[int, EventNode]] = defaultdict(dict)
    for node in nodes:
        if is_merger(node.port.operator):
            by_port[node.port][node.event_id] = node
    made: dict[Node, Node] = {}
    for port, group in by_port.items():
        insets = dict(log.input_sets_of(port, group))
        taken: dict[Port, dict[int, str]] = defaultdict(dict)
        for inset_id, _, sender, event_id in log.events_in(port.operator, set(insets.values())):
            taken[sender][event_id] = inset_id
        codes: dict[str, int] = {}
        for sender, inset_of in taken.items():
            for event_id, header in log.headers(sender.operator, sender.name, inset_of):
                codes[inset_of[event_id]] = max(header.code, codes.get(inset_of[event_id], 0))
        made |= {
            group[event_id]: replace(group[event_id], code=codes[inset_id])
            for event_id, inset_id in insets.items()
            if inset_id in codes
        }
    return made


def _reads(log: LineageLog, nodes: Iterable[ReadNode]) -> dict[Node, Node]:
    by_connection: dict[tuple[str, str], dict[int, ReadNode]] = defaultdict(dict)
    for node in nodes:
        by_connection[node.operator, node.connection][node.action_id] = node
    full: dict[Node, Node] = {}
    for (operator, connection), group in by_connection.items():
        records = {n: header.records for n, header in log.headers(operator, read_channel(connection), group)}
        for action_id, description in log.read_actions(operator, connection, group):
            node = group[action_id]
            full[node] = replace(node, description=description, records=records.get(action_id))
    return full
