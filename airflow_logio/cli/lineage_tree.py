"""A lineage result as a tree for the terminal. Each node appears once, neighbours as ranges, and long lists are cut."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from rich.text import Text
from rich.tree import Tree

from airflow_logio.commands import counted
from airflow_logio.protocol.source import READ_ACTION_ID
from airflow_logio.store.lineage.result import EventNode, InputSetNode, Lineage, Node, ReadNode

LINES_PER_NODE = 20
LABEL = 100
"""Most characters of a query that are shown; ``--json`` has all of it."""
_WRAPPED = re.compile(r"SELECT .*? FROM \((.*)\) AS rows_of_query(?: ORDER BY .*)?", re.DOTALL)
"""A query as `QuerySource` asks it: with the author's inside."""
LINES = 400
"""Most lines of the whole tree; the rest is only counted."""

RowsFor = Callable[[Lineage, InputSetNode, ReadNode], int | None]
"""How many rows of a read action an Input Set used, if that is known."""


def tree_of(result: Lineage, root: EventNode, lines_per_node: int, rows_for: RowsFor) -> Tree:
    """The tree that starts at a requested event."""
    tree = Tree(_event_text(result, [root]))
    _Growing(result, lines_per_node, rows_for).grow(tree, root)
    return tree


class _Growing:
    def __init__(self, result: Lineage, lines_per_node: int, rows_for: RowsFor) -> None:
        self._result = result
        self._lines_per_node = lines_per_node
        self._rows_for = rows_for
        self._seen: set[Node] = set()
        self._left = LINES

    def grow(self, tree: Tree, root: Node) -> None:
        """Grow breadth first: all lines of a node are chosen before any line below them."""
        todo = [(tree, root)]
        while todo:
            branch, node = todo.pop(0)
            lines = list(_lines(self._result, node))
            shown = lines[: min(self._lines_per_node, max(self._left, 0))]
            self._left -= len(shown)
            for line in shown:
                again = line[0] in self._seen and bool(_below(self._result, line[0]))
                child = branch.add(self._text(node, line, again=again))
                if not again and len(line) == 1:
                    todo.append((child, line[0]))
                self._seen.update(line)
            if rest := sum(map(len, lines[len(shown) :])):
                branch.add(Text(f"... and {rest:,} more", style="dim"))

    def _text(self, parent: Node, line: Sequence[Node], *, again: bool) -> Text:
        match line[0]:
            case InputSetNode(operator, inset_id):
                text = Text(f"Input Set {inset_id}")
                if self._result.direction == "forward":
                    text.append(f" of {operator}")
            case ReadNode() as read:
                rows = self._rows_for(self._result, parent, read) if isinstance(parent, InputSetNode) else None
                text = _read_text(read, rows)
            case EventNode():
                text = _event_text(self._result, [node for node in line if isinstance(node, EventNode)])
        return text.append("   (see above)", style="dim") if again else text


def _lines(result: Lineage, node: Node) -> Iterator[list[Node]]:
    """The lines below a node: events at the end of a path as ranges, everything else one by one."""
    below = _below(result, node)
    events = sorted((n for n in below if isinstance(n, EventNode)), key=lambda n: (n.port, n.slot or 0, n.event_id))
    line: list[EventNode] = []
    for event in events:
        if line and not _continues(result, line[-1], event):
            yield list(line)
            line.clear()
        line.append(event)
    if line:
        yield list(line)
    for other in below:
        if not isinstance(other, EventNode):
            yield [other]


def _below(result: Lineage, node: Node) -> list[Node]:
    """The nodes below a node. Read actions of sources are left out: they appear with their events."""
    return [n for n in result.after(node) if not (isinstance(n, ReadNode) and n.is_source)]


def _continues(result: Lineage, before: EventNode, event: EventNode) -> bool:
    """Whether two events share a line: neighbours made from neighbouring rows, with nothing below them."""
    if (before.port, before.slot, before.event_id + 1) != (event.port, event.slot, event.event_id):
        return False
    if _below(result, before) or _below(result, event) or result.after(before) != result.after(event):
        return False
    if (before.records is None) != (event.records is None) or before.code != event.code:
        return False
    rows, more = _rows(before), _rows(event)
    if rows is not None and more is not None:
        return rows[1] + 1 == more[0] and _other_facts(before) == _other_facts(event)
    return dict(before.about) == dict(event.about)


def _rows(event: EventNode) -> tuple[int, int] | None:
    """First and last row of its read action, if its source names them. An author's source may say anything."""
    first, last = event.about.get("first"), event.about.get("last")
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def _other_facts(event: EventNode) -> dict[str, Any]:
    told = (READ_ACTION_ID, *(("first", "last") if _rows(event) else ()))
    return {key: value for key, value in event.about.items() if key not in told}


def _event_text(result: Lineage, events: Sequence[EventNode]) -> Text:
    first, last = events[0], events[-1]
    text = Text(str(first.port), style="bold").append(_ids(first, last), style="bold cyan")
    if first.records is None:
        return text.append("   (records let go by retention)", style="dim")
    text.append(f"   {counted(sum(event.records or 0 for event in events), 'record')}")
    begin, end = _rows(first), _rows(last)
    if begin is not None and end is not None:
        text.append(f"   rows {begin[0]:,}-{end[1]:,}")
    for read in result.after(first):
        if isinstance(read, ReadNode):
            text.append(f" of {_what(read)}")
    if first.code:
        text.append(f"   code {first.code}")
    if about := _other_facts(first):
        text.append("   " + ", ".join(f"{key} {value}" for key, value in about.items()))
    return text


def _ids(first: EventNode, last: EventNode) -> str:
    """Numbers of events. A number that a slot has counted on its own says nothing without the slot, and is left out."""
    if first.slot is not None:
        return ""
    return f" {first.event_id}" if first == last else f" {first.event_id}-{last.event_id}"


def _read_text(read: ReadNode, rows: int | None) -> Text:
    text = Text("read ").append(_what(read), style="bold")
    if read.records is None:
        return text.append("   (effect let go by retention)", style="dim")
    share = f"{rows:,} of {read.records:,}" if rows not in (None, read.records) else f"{read.records:,}"
    return text.append(f"   {share} row{'' if share == '1' else 's'}")


def _what(read: ReadNode) -> str:
    """What a read action reads, in one word or the beginning of its query, from its description."""
    told = read.description
    if "path" in told:
        return PurePosixPath(str(told["path"])).name
    if "statement" in told:
        return query_label(str(told["statement"]))
    for name in ("table", "function"):
        if name in told:
            return f"{told.get('connection', read.connection)}.{told[name]}" if name == "table" else str(told[name])
    return str(read)


def query_label(statement: str) -> str:
    """A query on one line, as its author wrote it. Of a long one the middle is left out: its end tells what it selects."""
    text = " ".join((_WRAPPED.fullmatch(statement) or [statement, statement])[1].split())
    if len(text) <= LABEL:
        return text
    half = (LABEL - len(" ... ")) // 2
    beginning = textwrap.shorten(text, half, placeholder="") or text[:half]
    end = textwrap.shorten(" ".join(reversed(text.split())), half, placeholder="")
    return f"{beginning} ... {' '.join(reversed(end.split())) or text[-half:]}"
