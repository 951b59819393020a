"""Whether a plan over many Input Sets keeps them apart: ``many=True``.

A plan is read as Spark prints it once it is analyzed, because a Connect server shows no more. Each attribute has a number of
its own, so what is known of it where it is made holds wherever it is used. The records of the Input Sets, and of declared
reads by key, come under an alias of ours, by which they are found again. Whatever is not understood is refused: a function
without ``many=True`` may do anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from airflow_logio.dataflow.arrow_tables import INSET_ID, check_kept
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import OperatorFailed
from airflow_logio.spark.determinism import analyzed, drawn

_RECORDS, _READ = "logio_records", "logio_read"
_ROW_WISE = {
    *("Project", "Filter", "Sort", "SubqueryAlias", "View", "ResolvedHint", "UnresolvedHint", "Generate", "LocalLimit"),
    *("Repartition", "RepartitionByExpression", "RebalancePartitions", "WithCTE", "CTERelationDef"),
}
"""Nodes that hand on the columns of their child, some with more, unless a rule of their own says otherwise."""
_ATTRIBUTE = re.compile(r"(?P<name>[^#]*)#(?P<number>\d+)L?")
_CAST = re.compile(r"cast\((?P<inner>.*) as (?:bigint|int|string)\)")
_TO_WHOLE = re.compile(r"\bcast(?=\([^()]*#\d+L? as (?:bigint|int)\))")
"""Keeps whole numbers apart, and makes one of 1.2 and 1.4."""
_ORDERED = re.compile(r" (?:ASC|DESC) NULLS (?:FIRST|LAST)$")
_SPECIFICATION = "windowspecdefinition("
_KEEPS_LEFT = ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle")
_KEEPS_RIGHT = ("Inner", "Cross", "RightOuter")
_MOST_SHOWN = 200


def marked_records(frame: SparkFrame, port: str) -> SparkFrame:
    """The records of many Input Sets, which `check_kept_apart` finds again in a plan."""
    return frame.select("*").alias(f"{_RECORDS}_{port}")


def marked_read(frame: SparkFrame, name: str) -> SparkFrame:
    """The rows of a declared read by key: which there are depends on all Input Sets of the job."""
    return frame.select("*").alias(f"{_READ}_{name}")


def have_whole_keys(frames: Iterable[SparkFrame], keys: Iterable[str]) -> bool:
    """Whether the columns of these names are whole numbers, so that a cast to a wider or narrower one keeps them apart."""
    named = {key.lower() for key in keys}
    fields = (
        [field for frame in frames for field in frame.schema.fields if field.name.lower() in named] if named else []
    )
    return all(field.dataType.typeName() in ("byte", "short", "integer", "long") for field in fields)


def check_kept_apart(result: SparkFrame, keys: Mapping[str, str], *, whole_keys: bool = True) -> None:
    """Raises `OperatorFailed` unless what each Input Set gives depends on its own records alone, as far as the plan says it.

    `keys` has the key column of each declared read that has one, and `whole_keys` says whether they are whole numbers.
    """
    check_kept(result.columns)
    plan, is_deterministic = analyzed(result.select(INSET_ID))
    if what := drawn(plan, is_deterministic):
        raise OperatorFailed(
            f"it has many=True, and its plan has {what}: what it makes of an Input Set could not be compared with "
            f"what it makes of that one alone. Let an operator before it do that. {_REMEDY}"
        )
    root = _tree(plan if whole_keys else _TO_WHOLE.sub("rounding_cast", plan))
    found = _Reader(keys).read(root)
    if found.label != INSET_ID or not found.tags:
        raise OperatorFailed(
            f"it has many=True, and column {INSET_ID!r} of its result is not the one that it was given: hand that "
            f"on. {_REMEDY}"
        )


_REMEDY = "Or leave many=True out: then the function gets one Input Set, without that column"


@dataclass
class _Node:
    """A line of a plan. `subqueries` are the plans within its expressions."""

    name: str
    text: str
    children: list[_Node] = field(default_factory=list)
    subqueries: list[_Node] = field(default_factory=list)


@dataclass(frozen=True)
class _Rows:
    """What is known of the rows of a node.

    `label` says what they depend on: Input Sets, a read by key, or None for neither. Rows of the same values in `tags` are
    never mixed with others. `keys` are columns with the key of a read, `halves` the two of a full outer join.
    """

    label: str | None = None
    tags: frozenset[int] = frozenset()
    keys: Mapping[int, str] = field(default_factory=dict)
    halves: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


class _Reader:
    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self._defined: dict[str, tuple[_Rows, list[int] | None]] = {}
        """What queries of a WITH clause give, and their columns."""

    def read(self, node: _Node, outer: frozenset[int] = frozenset()) -> _Rows:
        """Raises `OperatorFailed` at the node that mixes rows. `outer` are the tags around a subquery."""
        if node.name == "SubqueryAlias" and (given := self._given(node)):
            return given
        children = [self.read(child, outer) for child in node.children]
        around = frozenset[int]().union(outer, *(child.tags for child in children))
        for query in node.subqueries:
            if self.read(query, around).label is not None:
                _refuse(node, "a subquery")
        if all(child.label is None for child in children) and node.name != "CTERelationRef":
            self._define(node, _Rows())
            return _Rows()
        made = self._made(node, children, outer)
        self._define(node, made)
        return made

    def _define(self, node: _Node, rows: _Rows) -> None:
        if node.name == "CTERelationDef":
            self._defined[_first_word(node)] = rows, _outputs(node)

    def _given(self, node: _Node) -> _Rows | None:
        """The records under an alias of ours; None for another alias."""
        alias = node.text.partition(" ")[2].strip()
        columns = _columns(node)
        if alias.startswith(f"{_RECORDS}_") and columns:
            keys = {number: read for read, key in self._keys.items() for name, number in columns if _same(name, key)}
            return _Rows(INSET_ID, frozenset(number for name, number in columns if _same(name, INSET_ID)), keys)
        if alias.startswith(f"{_READ}_") and columns:
            read = alias.removeprefix(f"{_READ}_")
            return _Rows(read, frozenset(number for name, number in columns if _same(name, self._keys[read])))
        return None

    def _made(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        rule = getattr(self, f"_of_{node.name.lower()}", None)
        if rule is not None:
            return rule(node, children, outer)  # type: ignore[no-any-return]
        if node.name in _ROW_WISE and len(children) == 1:
            return children[0]
        _refuse(node)

    # --- a rule per node ----------------------------------------------------------------------------------------------

    def _of_project(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        return _selected(children[0], _lists(node.text)[-1:])

    def _of_filter(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        """A subquery of the rows of one Input Set, that around it."""
        for left, right in _equalities(node.text.partition(" ")[2]):
            for one, other in ((left, right), (right, left)):
                around = _number(other.removeprefix("outer(").removesuffix(")")) if other.startswith("outer(") else None
                if around in outer and _number(one) in children[0].tags:
                    return _Rows()
        return children[0]

    def _of_aggregate(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        lists = _lists(node.text)
        # Without keys there is one list, of what is made: a column by itself is in none of those.
        if not lists or not _has(lists[0], children[0].tags):
            _refuse(node)
        return _selected(children[0], lists[1:2] or lists)

    def _of_expand(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        """Of cube, rollup and grouping sets: a column that is null in one of them is none that keeps rows apart."""
        lists = _lists(node.text)
        rows = [_items(one) for one in _items(lists[0])] if len(lists) == 2 else []
        columns = _items(lists[-1]) if lists else []
        tags = {
            number
            for place, column in enumerate(columns)
            if (number := _number(column)) is not None
            and rows
            and all(len(row) == len(columns) and _number(row[place]) in children[0].tags for row in rows)
        }
        return _Rows(children[0].label, frozenset(tags))

    def _of_window(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        begins = [match.end() - 1 for match in re.finditer(re.escape(_SPECIFICATION), node.text)]
        for begin in begins:
            partition = [item for item in _items(_balanced(node.text, begin)) if not _ORDERED.search(item)]
            if not any(_number(item) in children[0].tags for item in partition):
                _refuse(node)
        if not begins:
            _refuse(node)
        return children[0]

    def _of_deduplicate(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        lists = _lists(node.text)
        if not lists or not _has(lists[0], children[0].tags):
            _refuse(node)
        return children[0]

    def _of_distinct(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        if not children[0].tags:
            _refuse(node)
        return children[0]

    def _of_globallimit(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        if node.text != "GlobalLimit 0":
            _refuse(node)
        return children[0]

    def _of_view(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        lists = _lists(node.text)
        return _moved(children[0], _outputs(node.children[0]), _numbers(_items(lists[-1])) if lists else None)

    def _of_cterelationref(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        known, columns = self._defined.get(_first_word(node), (None, None))
        if known is None:
            _refuse(node)
        lists = _lists(node.text)
        return _moved(known, columns, _numbers(_items(lists[0])) if lists else None)

    def _of_withcte(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        return children[-1]

    def _of_join(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        kind = re.split(r"[,( ]", node.text.partition(" ")[2], maxsplit=1)[0]
        left, right = children
        equal = [(_number(one), _number(other)) for one, other in _equalities(node.text.partition(", ")[2])]
        equal += [(other, one) for one, other in equal]
        if left.label is not None and right.label is not None:
            if not any(self._are_one(left, one, right, other) for one, other in equal):
                _refuse(node)
            if left.label != right.label:
                is_left = left.label == INSET_ID
                kept, kinds = (left, _KEEPS_LEFT) if is_left else (right, _KEEPS_RIGHT)
                if kind not in kinds:
                    _refuse(node)
                return kept
        elif kind not in (_KEEPS_LEFT if right.label is None else _KEEPS_RIGHT):
            _refuse(node)
        elif right.label is None or left.label is None:
            return left if right.label is None else right
        if kind == "FullOuter":
            return _Rows(left.label, halves=(left.tags, right.tags))
        keys = {**left.keys, **right.keys}
        if kind in ("Inner", "Cross"):
            return _Rows(left.label, left.tags | right.tags, keys)
        return replace(right, keys=keys) if kind == "RightOuter" else replace(left, keys=keys)

    @staticmethod
    def _are_one(left: _Rows, one: int | None, right: _Rows, other: int | None) -> bool:
        """Whether two columns that are equal keep apart what their sides depend on."""
        if left.label == right.label:
            return one in left.tags and other in right.tags
        if left.label == INSET_ID:
            return one is not None and left.keys.get(one) == right.label and other in right.tags
        return (
            right.label == INSET_ID and other is not None and right.keys.get(other) == left.label and one in left.tags
        )

    def _of_union(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        return self._by_place(node, children, range(len(children)))

    def _of_except(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        if children[0].label is None or not children[0].tags:
            _refuse(node)
        return children[0] if children[1].label is None else self._by_place(node, children, (0, 1))

    def _of_intersect(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        return self._of_except(node, children, outer)

    @staticmethod
    def _by_place(node: _Node, children: Sequence[_Rows], places: Sequence[int]) -> _Rows:
        """Rows of several are of one column by its place."""
        columns = [_outputs(node.children[place]) for place in places]
        labels = {children[place].label for place in places}
        if None in columns or len(labels) > 1:
            _refuse(node)
        common = set[int].intersection(
            *(
                {place for place, number in enumerate(own or ()) if number in rows.tags}
                for own, rows in zip(columns, children, strict=True)
            )
        )
        first = columns[0] or []
        if not common:
            _refuse(node)
        return _Rows(children[0].label, frozenset(first[place] for place in common))

    def _of_flatmapgroupsinpandas(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        """The function of a group says whose its rows are: that is compared."""
        lists = _lists(node.text)
        if len(lists) < 2 or not _has(lists[0], children[0].tags):
            _refuse(node)
        return self._said(children[0], lists[-1])

    _of_flatmapgroupsinarrow = _of_flatmapgroupsinpandas

    def _of_flatmapcogroupsinpandas(self, node: _Node, children: Sequence[_Rows], outer: frozenset[int]) -> _Rows:
        lists = _lists(node.text)
        lengths = [int(number) for number in re.findall(r"\b\d+\b", node.text.partition(" ")[2])[:2]]
        columns = [(_outputs(child) or [])[:length] for child, length in zip(node.children, lengths, strict=True)]
        both = zip(*columns, strict=False)
        if not lists or not any(one in children[0].tags and other in children[1].tags for one, other in both):
            _refuse(node)
        return self._said(children[0], lists[-1])

    _of_flatmapcogroupsinarrow = _of_flatmapcogroupsinpandas

    @staticmethod
    def _said(rows: _Rows, columns: str) -> _Rows:
        named = [_ATTRIBUTE.fullmatch(item) for item in _items(columns)]
        tags = {int(one["number"]) for one in named if one is not None and _same(one["name"], INSET_ID)}
        return _Rows(rows.label, frozenset(tags))


def _refuse(node: _Node, what: str = "") -> NoReturn:
    shown = node.text if len(node.text) <= _MOST_SHOWN else f"{node.text[:_MOST_SHOWN]}..."
    raise OperatorFailed(
        f"it has many=True, and {what or node.name} in its plan does not keep Input Sets apart: give it "
        f"{INSET_ID!r} as a key (group by it, partition by it, join on it). {_REMEDY}. In the plan: {shown}"
    )


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


# --- rows that are handed on ------------------------------------------------------------------------------------------


def _selected(rows: _Rows, lists: Sequence[str]) -> _Rows:
    """What is known of rows of some columns: those handed on, also under another name or as another type."""
    tags, keys = set[int](), dict[int, str]()
    for item in (item for one in lists for item in _items(one)):
        made, _, alias = item.rpartition(" AS ")
        number = _number(alias) if made else _number(item)
        of = _number(made) if made else number
        if number is None:
            continue
        if of in rows.tags or _joins(made, rows):
            tags.add(number)
        if of is not None and of in rows.keys:
            keys[number] = rows.keys[of]
    live = {number for one in lists for item in _items(one) if (number := _number(item)) is not None}
    halves = (rows.halves[0] & live, rows.halves[1] & live)
    return _Rows(rows.label, frozenset(tags), keys, halves)


def _joins(made: str, rows: _Rows) -> bool:
    """Whether an expression is the one of two columns that a full outer join has given."""
    if not made.startswith("coalesce(") or not made.endswith(")"):
        return False
    numbers = [_number(item) for item in _items(made.removeprefix("coalesce")[1:-1])]
    if all(number in rows.tags for number in numbers):
        return True
    return len(numbers) == 2 and all(any(number in half for number in numbers) for half in rows.halves)


def _moved(rows: _Rows, before: list[int] | None, after: list[int] | None) -> _Rows:
    """The same rows, under other numbers of columns."""
    if not after or rows.tags & set(after):
        return rows
    if before is None or len(before) != len(after):
        return replace(rows, tags=frozenset(), keys={})
    numbers = dict(zip(before, after, strict=True))
    return _Rows(
        rows.label,
        frozenset(numbers[tag] for tag in rows.tags if tag in numbers),
        {numbers[key]: read for key, read in rows.keys.items() if key in numbers},
    )


# --- the text of a plan -----------------------------------------------------------------------------------------------

_LINE = re.compile(r"^(?P<before>(?:[: ]  )*)(?P<mark>[:+]- )(?P<text>\S.*)$")


def _tree(plan: str) -> _Node:
    """The nodes of a plan. A line that begins no node continues the one before it: a text may have several lines."""
    first, *lines = plan.strip("\n").split("\n")
    root = _Node(_name(first), first)
    path = [(0, root)]
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            path[-1][1].text += f"\n{line}"
            continue
        depth = len(match["before"]) // 3 + 1
        node = _Node(_name(match["text"]), match["text"])
        while path[-1][0] >= depth:
            path.pop()
        above, parent = path[-1]
        (parent.children if above == depth - 1 else parent.subqueries).append(node)
        path.append((depth, node))
    return root


def _name(text: str) -> str:
    return re.split(r"[ \[(,]", text, maxsplit=1)[0]


def _first_word(node: _Node) -> str:
    return re.split(r"[ ,]", node.text.partition(" ")[2], maxsplit=1)[0]


def _lists(text: str) -> list[str]:
    """What is within the square brackets of a node that are in no others."""
    found, at = [], 0
    while (begin := text.find("[", at)) >= 0:
        if text[:begin].count("(") > text[:begin].count(")") and not text.startswith("View"):
            at = begin + 1
            continue
        inner = _balanced(text, begin)
        found.append(inner)
        at = begin + len(inner) + 2
    return found


def _balanced(text: str, begin: int) -> str:
    """What is within the bracket that begins there; to the end, if no bracket closes it."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] in "([") - (text[at] in ")]")
        if depth == 0:
            return text[begin + 1 : at]
    return text[begin + 1 :]


def _items(text: str, separator: str = ", ") -> list[str]:
    """Parts of a text at separators that are in no bracket."""
    found, depth, begin = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0 and text.startswith(separator, at):
            found.append(text[begin:at])
            begin = at + len(separator)
    found.append(text[begin:])
    inner = [item.strip() for item in found]
    return [item[1:-1] if item.startswith("[") and item.endswith("]") else item for item in inner if item]


def _number(text: str) -> int | None:
    """The number of an attribute, also cast to a type that keeps its values apart; None for any other expression."""
    if cast := _CAST.fullmatch(text):
        return _number(cast["inner"])
    match = _ATTRIBUTE.fullmatch(text)
    if match is None or match["name"].startswith(("-", "NOT ", "~", "(")):
        return None
    return int(match["number"])


def _numbers(items: Sequence[str]) -> list[int] | None:
    numbers = [_number(item.rpartition(" AS ")[2]) for item in items]
    return None if None in numbers else [number for number in numbers if number is not None]


def _has(items: str, tags: frozenset[int]) -> bool:
    return any(_number(item) in tags for item in _items(items))


def _equalities(condition: str) -> Iterator[tuple[str, str]]:
    """The two sides of each equality that must hold."""
    text = condition.strip()
    if text.startswith("("):
        inner = _balanced(text, 0)
        if text[len(inner) + 2 :].partition(", ")[0]:  # as behind (a = b) IN (false); a join's hints may follow
            return
        parts = _items(inner, " AND ")
        if len(parts) > 1:
            for part in parts:
                yield from _equalities(part)
            return
        for sign in (" <=> ", " = "):
            sides = _items(inner, sign)
            if len(sides) == 2:
                yield sides[0], sides[1]
                return


# --- the columns of a node --------------------------------------------------------------------------------------------


def _columns(node: _Node) -> list[tuple[str, int]]:
    """Names and numbers of the columns of the first projection below."""
    while node.name in ("SubqueryAlias", "ResolvedHint") and len(node.children) == 1:
        node = node.children[0]
    if node.name != "Project":
        return []
    named = [_ATTRIBUTE.fullmatch(item.rpartition(" AS ")[2]) for one in _lists(node.text)[-1:] for item in _items(one)]
    return [(one["name"], int(one["number"])) for one in named if one is not None]


_LISTED = {"Project": -1, "Aggregate": -1, "Expand": -1, "LogicalRDD": 0, "LocalRelation": 0, "CTERelationRef": 0}
"""Node that lists its columns → in which of its lists."""
_OF_CHILD = (_ROW_WISE | {"Deduplicate", "Distinct", "GlobalLimit", "Union", "Except", "Intersect"}) - {"Generate"}
"""Nodes that have the columns of their first child."""


def _outputs(node: _Node) -> list[int] | None:
    """The numbers of the columns of a node, in order; None if they are not told."""
    if node.name in _LISTED:
        lists = _lists(node.text)
        return _numbers(_items(lists[_LISTED[node.name]])) if lists else None
    if node.name == "Join":
        left, right = map(_outputs, node.children)
        if re.match(r"Join Left(?:Semi|Anti)", node.text):
            return left
        return None if left is None or right is None else [*left, *right]
    return _outputs(node.children[0]) if node.name in _OF_CHILD and node.children else None
