"""Ready-made operators, which say themselves how their records depend on those that they get (Section 7.3).

Each function returns what `stateless` or `generate` return: ``p.operator("big", filtered(pc.field("amount") > 0), raw)``.
All have mode ``driver``: with a DataFrame of Spark each of them is one call, and its author says ``depends=`` beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import Any, ClassVar

from airflow_logio.dataflow.arrow import pa, pc
from airflow_logio.dataflow.dependencies import from_every, from_one, window_start
from airflow_logio.dataflow.functions.decorators import GenerativeFunction, StatelessFunction, generate, stateless
from airflow_logio.dataflow.names import check_column, check_columns, check_name, did_you_mean
from airflow_logio.dataflow.operators import External, InputEvent, InputSet, PortTable, SinkOperator
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError


def filtered(condition: pc.Expression) -> StatelessFunction:
    """An operator that keeps the records for which a condition is true, unchanged and in their order.

    :param condition: an expression of ``pyarrow.compute`` on their columns: ``(pc.field("amount") > 0) &
        pc.field("state").is_valid()``. Where it is null, a record is left out.

    Raises PipelineDefinitionError for what is no expression; in a run OperatorFailed, if it names a column that the
    records lack or is not boolean.
    """
    if not isinstance(condition, pc.Expression):
        raise PipelineDefinitionError(
            f"filtered: condition is {condition!r}; give an expression of pyarrow.compute, e.g. pc.field('amount') > 0"
        )
    return stateless(depends=from_one())(_Filtered(condition, condition.__reduce__()[1][0].to_pybytes().hex()))


def selected(columns: Mapping[str, str] | Iterable[str]) -> StatelessFunction:
    """An operator that keeps some columns alone, in this order.

    :param columns: new name → input column; or the names of columns that stay as they are.

    Raises PipelineDefinitionError for names that are not allowed; in a run OperatorFailed for a column that records
    lack.
    """
    names = _renamed("selected", columns)
    if not names:
        raise PipelineDefinitionError("selected: columns is empty; name the columns to keep")
    return stateless(depends=from_one(names))(_Selected(names))


def joined(
    name: str, read: DeclaredRead, on: str | None = None, columns: Mapping[str, str] | Iterable[str] | None = None
) -> GenerativeFunction:
    """An operator that adds columns of an external table to each record: those of the row with the record's key.

    :param name: the read's name in the pipeline.
    :param read: a `TableRead` or `FunctionRead`, usually with a `key`: ``TableRead("warehouse", "products",
        key="product_id")``.
    :param on: the column that both have; by default the key of the read. Must be given for a read without a key, which
        reads the whole table.
    :param columns: those to add, new name → column of the read, or names; by default all but `on`; ``()`` adds none.

    Add it with a window; ``EveryEvents(1)`` reads for each event. A record without such a row is left out, also one
    whose key is null. Every record is made of one record, and of each at most one, so lineage is that of a filter; the
    rows of the read are those with the keys of the records. Raises PipelineDefinitionError; in a run OperatorFailed,
    where a key is in several rows, a column is missing, or both have one of the same name.
    """
    if not isinstance(read, DeclaredRead):
        raise PipelineDefinitionError(f"joined: read is {read!r}; give a TableRead or a FunctionRead")
    key = check_column(_key(name, read, on))
    names = None if columns is None else _renamed("joined", columns)
    if names is not None and key in names:
        raise PipelineDefinitionError(
            f"joined: columns names {key!r}, which the records have already: leave it out, or give it another name, "
            f"columns={{'other_{key}': {names[key]!r}}}"
        )
    if isinstance(read, TableRead) and read.columns:
        for one in (key, *(names or {}).values()):
            if one not in read.columns:
                raise PipelineDefinitionError(
                    f"joined: column {one!r} is not among the columns {read.columns} that the read of {read} fetches: add "
                    f"it to them.{did_you_mean(one, read.columns)}"
                )
    function = _Joined(check_name("read", name), str(read), key, names)
    if iskeyword(name):
        raise PipelineDefinitionError(f"joined: name is {name!r}, a word of Python; give the read another name")
    return generate(reads={name: read}, depends=from_one())(function)


def summed(by: Iterable[str], of: Iterable[str], start: str | None = None) -> GenerativeFunction:
    """An operator that sums columns per group of an Input Set, as `Sums` does: one row per group, ordered by `by`.

    :param by: the columns that make a group.
    :param of: the columns to sum.
    :param start: name of a first column with the start of the window, timestamp[us] in UTC without zone; for windows of
        time. By default there is none.

    ``summed(by=["store_id"], of=["amount"], start="hour")`` with ``window=Tumbling("1h", on="date")``. Lineage of a sum
    is every record of the group. Raises PipelineDefinitionError for names that are not allowed, empty, or given twice;
    in a run OperatorFailed as `Sums`.
    """
    keys, values = (tuple(_renamed("summed", given, name)) for name, given in (("by", by), ("of", of)))
    if not keys or not values:
        raise PipelineDefinitionError(f"summed: {'of' if keys else 'by'} is empty; name columns in both by and of")
    both = [one for one in (*values, start) if one in keys] or [one for one in values if one == start]
    if both:
        raise PipelineDefinitionError(f"summed: {both[0]!r} is named twice in by, of and start: name each column once")
    starts = {} if start is None else {check_column(start): window_start}
    depends = from_every({**starts, **{one: one for one in keys}})
    return generate(accumulate=Sums(keys, values), depends=depends)(_Summed() if start is None else _SummedFrom(start))


class Count(SinkOperator):
    """A sink that counts what it is sent: ``pipeline.sink("done", Count(), upstream)``. It is for output ports that
    nothing else uses.

    Global state: ``{"events": ..., "records": ...}``; it uses no Input Sets.
    """

    order_insensitive = True

    def initial_state(self) -> dict[str, Any]:
        return {"events": 0, "records": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["events"] += 1
        state["records"] += event.table.num_rows
        return {}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        raise OperatorFailed(f"Count assigns no Input Sets, yet event {event.event_id} is logged for {inset_id!r}")

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise OperatorFailed(f"Count generates nothing, yet Input Set {input_set.inset_id!r} was triggered")


_FEW_ROWS = 16_384
"""Below this many rows, summing up costs more than it saves."""


@dataclass(slots=True)
class PartialSums:
    """Tables of the same columns that are to be summed: `rows` in all, `settled` of them in tables that are already sums."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums that are made while records come: ``@generate(accumulate=Sums(by=..., of=...))``. The function gets the sums
    in place of the records.

    :param by: the columns that make a group.
    :param of: the columns to sum. Prefer integers: sums of floating point numbers depend on the order of addition.

    The result has the columns `by` then `of`, ordered by `by`. The event state holds at most about twice as many rows
    as there are groups: when the unsummed records outnumber the sums, they are merged, so that each record is summed a
    few times at most. Raises PipelineDefinitionError for columns that are in both, or none; in a run OperatorFailed for
    a column that is missing or cannot be summed, and for a sum of integers that does not fit into 64 bits.
    """

    by: tuple[str, ...]
    of: tuple[str, ...]

    def __init__(self, by: Iterable[str], of: Iterable[str]) -> None:
        object.__setattr__(self, "by", check_columns(by))
        object.__setattr__(self, "of", check_columns(of))
        if not self.by or not self.of or set(self.by) & set(self.of):
            raise PipelineDefinitionError(f"Sums(by={self.by}, of={self.of}): name columns in both, and none in both")

    def __call__(self, held: PartialSums | None, part: pa.Table) -> PartialSums:
        """`held` with the records of `part` added; changes and returns it."""
        names = part.schema.names
        if wrong := [name for name in (*self.by, *self.of) if names.count(name) != 1]:
            raise OperatorFailed(f"the sums need column {wrong[0]!r}, once; the records have {names}")
        held = held or PartialSums()
        held.tables.append(part.select([*self.by, *self.of]))
        held.rows += part.num_rows
        if held.rows - held.settled > max(held.settled, _FEW_ROWS):
            self._settle(held)
        return held

    def finish(self, held: PartialSums) -> pa.Table:
        """One row per group, ordered by `by`."""
        self._settle(held)
        return held.tables[0].sort_by([(name, "ascending") for name in self.by])

    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""
        return {"sums": {"by": list(self.by), "of": list(self.of)}}

    def _settle(self, held: PartialSums) -> None:
        try:
            summed = self._summed(pa.concat_tables(held.tables))
        except pa.ArrowException as error:
            raise OperatorFailed(f"the sums of {list(self.of)} by {list(self.by)} cannot be made: {error}") from error
        held.tables = [summed]
        held.rows = held.settled = summed.num_rows

    def _summed(self, records: pa.Table) -> pa.Table:
        wide = self._wide(records)
        # One thread: with more, Arrow returns the groups in another order each time.
        groups = _cast(records, wide).group_by(list(self.by), use_threads=False)
        summed = groups.aggregate([(name, "sum") for name in self.of]).select(
            [*self.by, *(f"{n}_sum" for n in self.of)]
        )
        summed = summed.rename_columns([*self.by, *self.of])
        # An integer out of bounds is refused here.
        return _cast(summed, {name: _sum_type(records.schema.field(name).type) for name in wide})

    def _wide(self, records: pa.Table) -> dict[str, pa.DataType]:
        """Columns whose sums might not fit are summed as decimals: Arrow's sums of integers start again at the other end."""
        columns = {name: records.column(name) for name in self.of}
        return {name: pa.decimal128(38, 0) for name, column in columns.items() if _might_overflow(column)}


def _might_overflow(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_integer(column.type):
        return False
    low, high = pc.min_max(column).as_py().values()
    return low is not None and max(abs(low), abs(high)) * len(column) >= 2**63


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow makes of the sum of a column of integers."""
    return pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()


def _cast(records: pa.Table, kinds: dict[str, pa.DataType]) -> pa.Table:
    for name, kind in kinds.items():
        place = records.schema.get_field_index(name)
        records = records.set_column(place, name, records.column(place).cast(kind))
    return records


# The classes hold what was given, so that `describe` says it: the source of a nested function is the same for any
# arguments.


# The classes hold what was given, so that `describe` says it: the source of a nested function is the same for any arguments.
@dataclass(frozen=True)
class _Filtered:
    """The records for which a condition is true."""

    __name__: ClassVar[str] = "filtered"
    condition: pc.Expression = field(compare=False)
    text: str = field(repr=False)
    """As Arrow serializes it: `str` shows long lists in part, and no types."""

    def describe(self) -> dict[str, Any]:
        return {"condition": self.text}

    def __call__(self, records: pa.Table) -> pa.Table:
        try:
            mask = self._mask(records)
        except pa.ArrowException as error:
            raise OperatorFailed(
                f"filtered: condition {_one_line(self.condition)} cannot be computed: {error}. The records have columns "
                f"{', '.join(f'{one.name} ({one.type})' for one in records.schema)}"
            ) from error
        if not pa.types.is_boolean(mask.type):
            raise OperatorFailed(
                f"filtered: condition {_one_line(self.condition)} is of type {mask.type}, and must be true or false: compare "
                "it with something, e.g. pc.field('amount') > 0"
            )
        return records.filter(mask)

    def _mask(self, records: pa.Table) -> pa.ChunkedArray:
        from pyarrow import acero  # loaded where it is used: who imports a pipeline need not wait for it

        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(records))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self.condition], ["kept"]))
        # One thread: with more, the order of the records might be another one each time.
        return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False).column(0)


@dataclass(frozen=True)
class _Selected:
    """The records with some columns alone."""

    __name__: ClassVar[str] = "selected"
    columns: Mapping[str, str]

    def describe(self) -> dict[str, Any]:
        return {"columns": list(self.columns.items())}

    def __call__(self, records: pa.Table) -> pa.Table:
        return pa.table(
            {name: _column("selected", "the records have", records, one) for name, one in self.columns.items()}
        )


@dataclass(frozen=True)
class _Joined:
    """Each record with columns of the row of a read that has the same key."""

    __name__: ClassVar[str] = "joined"
    name: str
    read: str
    on: str
    columns: Mapping[str, str] | None

    @property
    def __signature__(self) -> Signature:
        """The read is a parameter of its own name, as in an author's function."""
        # No read has a name with '_' before it.
        return Signature(
            [Parameter("_records", Parameter.POSITIONAL_ONLY), Parameter(self.name, Parameter.KEYWORD_ONLY)]
        )

    def describe(self) -> dict[str, Any]:
        return {"on": self.on, "columns": None if self.columns is None else list(self.columns.items())}

    def __call__(self, records: pa.Table, /, **reads: pa.Table) -> pa.Table | None:
        rows = reads[self.name]
        if not rows.num_rows:
            return None  # perhaps without columns, too
        places = self._places(_column("joined", "the records have", records, self.on), rows)
        result, places = records.filter(places.is_valid()), places.drop_null()
        for name, column in self._added(records, rows).items():
            result = result.append_column(name, column.take(places))
        return result

    def _places(self, wanted: pa.ChunkedArray, rows: pa.Table) -> pa.ChunkedArray:
        """The place of each record's row; null where there is none."""
        keys = _column("joined", f"{self._what} has", rows, self.on)
        try:
            both = [pa.schema([(self.on, column.type)]) for column in (wanted, keys)]
            kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
            if pa.types.is_decimal(kind):
                kind = pa.decimal256(76, kind.scale)  # Arrow's has too few digits for integers, beside decimals
            wanted, keys = wanted.cast(kind), keys.cast(kind)
            counted = pc.value_counts(keys.drop_null())
            twice = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
            places = pc.index_in(wanted, value_set=keys, skip_nulls=True)
        except pa.ArrowException as error:
            raise OperatorFailed(
                f"joined: column {self.on!r} is {wanted.type} in the records and {keys.type} in {self._what}, not "
                f"comparable: give both the same type in an operator before this one ({error})"
            ) from error
        if len(twice):
            raise OperatorFailed(
                f"joined: {self._what} has several rows with {self.on} {twice[0].as_py()!r}, and one of each is joined: read "
                "a table or view with one row of each key, or write a @generate function that says what becomes of several"
            )
        return places

    def _added(self, records: pa.Table, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        names = self.columns
        if names is None:
            names = {name: name for name in rows.column_names if name != self.on}
        for name in names:
            if name in records.column_names:
                raise OperatorFailed(
                    f"joined: the records and {self._what} both have column {name!r}: say which columns to add, under names "
                    f"of their own, columns={{'other_{name}': {names[name]!r}, ...}}"
                )
        return {name: _column("joined", f"{self._what} has", rows, one) for name, one in names.items()}

    @property
    def _what(self) -> str:
        return f"read {self.name!r} of {self.read}"


@dataclass(frozen=True)
class _Summed:
    """The sums as they are."""

    __name__: ClassVar[str] = "summed"

    def describe(self) -> dict[str, Any]:
        return {}  # `Sums` says what it sums

    def __call__(self, sums: pa.Table) -> pa.Table:
        return sums


@dataclass(frozen=True)
class _SummedFrom:
    """The sums, behind the start of their window of time."""

    __name__: ClassVar[str] = "summed"
    start: str

    def describe(self) -> dict[str, Any]:
        return {"start": self.start}

    def __call__(self, sums: pa.Table, window_start: datetime) -> pa.Table:
        # Windows of a zone have a start of that zone, and so has the column.
        start = pa.scalar(window_start, pa.timestamp("us") if window_start.tzinfo is None else None)
        return sums.add_column(0, self.start, pa.repeat(start, sums.num_rows))


def _key(name: str, read: DeclaredRead, on: str | None) -> str:
    if on is None and read.key is None:
        raise PipelineDefinitionError(f"joined: read {name!r} has no key; say on='the column that both have'")
    if None not in (on, read.key) and on != read.key:
        # The read fetches the rows with the keys of one Input Set: by another column, some would be missing.
        raise PipelineDefinitionError(
            f"joined: on is {on!r}, and read {name!r} is restricted by key {read.key!r}: leave on= out, or give the read "
            f"key={on!r}"
        )
    return str(on or read.key)


def _renamed(where: str, given: Mapping[str, str] | Iterable[str], argument: str = "columns") -> dict[str, str]:
    """New name → column, checked."""
    if (
        isinstance(given, str)
        or not isinstance(given, Iterable)
        or (argument != "columns" and isinstance(given, Mapping))
    ):
        raise PipelineDefinitionError(f"{where}: {argument} is {given!r}; give names of columns, e.g. ['amount']")
    try:
        if isinstance(given, Mapping):
            return {check_column(name): check_column(column) for name, column in given.items()}
        return {name: name for name in check_columns(given)}
    except PipelineDefinitionError as error:
        raise PipelineDefinitionError(f"{where}: {argument}: {error}") from None


def _column(where: str, what: str, table: pa.Table, name: str) -> pa.ChunkedArray:
    names = table.schema.names
    if names.count(name) != 1:
        raise OperatorFailed(f"{where}: column {name!r} is needed, once; {what} {names}.{did_you_mean(name, names)}")
    return table.column(name)


def _one_line(condition: pc.Expression) -> str:
    return " ".join(str(condition).split())
