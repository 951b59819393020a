"""Arrow tables: made of frames, made uniform, cut into events, and tagged by Input Set.

Frames of other libraries are recognized without importing a library. No cut depends on how a reader happens to make its
batches: the same rows give the same events. A batch of Input Sets (mode ``executors``, design D7) is thousands of small
tables, so all work on it is per column or per Input Set, none per record in Python.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from airflow_logio.dataflow.arrow import np, pa, pc
from airflow_logio.errors import OperatorFailed, SourceNotOrdered

_HINTS = {
    "LazyFrame": "call .collect() on it",
    "Series": "make a frame of it: .to_frame()",
    "DataFrameGroupBy": "aggregate it",
    "GroupBy": "aggregate it",
}


def as_table(value: Any) -> pa.Table | None:
    """An Arrow table, or what can be one: a record batch, a frame of pandas or polars. None for anything else.

    Types become those that sources give: timestamps in microseconds without zone, plain strings and lists, no dictionaries. A
    named index of pandas becomes a column, any other is dropped; NaN of pandas is null. Raises OperatorFailed for a frame
    that Arrow has no types for.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    library = library_of(value)
    if type(value).__name__ != "DataFrame" or library not in ("pandas", "polars"):
        return None
    if library == "polars":
        _refuse_objects(value)
    try:
        table = _of_pandas(value) if library == "pandas" else value.to_arrow()
        return uniform(_plain(table))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise OperatorFailed(
            f"a {library} DataFrame cannot be made an Arrow table: {type(error).__name__}: {error}"
        ) from error


def needed_table(value: Any, what: str) -> pa.Table:
    """As `as_table`; `what` returned it, and begins the sentence of the error. Raises OperatorFailed, also for values that
    their type cannot have."""
    table = as_table(value)
    if table is None:
        raise OperatorFailed(
            f"{what} returned {type_name(value)}; return an Arrow table, or a DataFrame of pandas or polars"
        )
    check_values(table, f"{what} returned")
    return table


def check_values(table: pa.Table, what: str, first: int = 0) -> None:
    """Raises OperatorFailed if a value is none of its column's type: text that is not UTF-8, a decimal beyond its precision,
    a time of 24:00, an index beyond its dictionary, an offset that leads nowhere.

    Arrow makes and passes on such values, and refuses them only where it reads an event from the log. `what` begins the
    sentence, `first` is the number of the first row. It costs 10 µs per thousand rows of two text columns, a sixth of what it
    costs to log them, and next to nothing for columns of numbers and timestamps.
    """
    try:
        if any(field.type.num_fields for field in table.schema):
            for column in table.columns:
                for chunk in column.chunks:
                    _validate(chunk)
        else:
            table.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise OperatorFailed(_said_of_values(table, what, first, error)) from error


def _validate(array: pa.Array) -> None:
    """As Arrow's own full validation, of what an array shows: that looks at whole children, and small events may be slices of
    one large batch."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        _validate(array.storage)
    elif pa.types.is_struct(kind):
        array.validate()
        for number in range(kind.num_fields):
            _validate(array.field(number))
    elif len(array) and (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        array.validate()
        children = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        offsets = array.offsets.to_numpy()
        if offsets[0] < 0 or offsets[-1] > len(children[0]) or (np.diff(offsets) < 0).any():
            raise pa.ArrowInvalid("the offsets of a list lead nowhere")
        for child in children:
            _validate(child.slice(offsets[0], offsets[-1] - offsets[0]))
    else:
        array.validate(full=True)


def _said_of_values(table: pa.Table, what: str, first: int, error: Exception) -> str:
    for name, column in zip(table.column_names, table.columns, strict=True):
        before = first
        for chunk in column.chunks:
            if fault(chunk) is not None:
                place = first_fault(chunk)
                why = fault(chunk.slice(place, 1)) or str(error)
                return (
                    f"{what} values that are none: column {name!r}, row {before + place:,} (counted from 0): "
                    f"{_reason(why)}"
                )
            before += len(chunk)
    return f"{what} a table that Arrow refuses: {error}"


def fault(array: pa.Array) -> str | None:
    try:
        _validate(array)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        return str(error)
    return None


def first_fault(array: pa.Array) -> int:
    """The place of the first value for which Arrow refuses the array."""
    if pa.types.is_dictionary(array.type) and fault(array.dictionary) is not None:
        named: int = pc.index(array.indices, pa.scalar(first_fault(array.dictionary), array.indices.type)).as_py()
        return max(0, named)
    low, high = 0, len(array)  # the first `low` values are whole, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fault(array.slice(0, middle)) is not None else (middle, high)
    return low


def _reason(why: str) -> str:
    """What Arrow says, and what helps."""
    why = why.rpartition("Invalid: ")[2]
    if "UTF8" in why:
        return "it is not UTF-8. Decode the bytes with the encoding that they have, or keep them as binary"
    if "does not fit in precision" in why:
        return f"{why}. Give the column a larger precision"
    if "acceptable range" in why:
        return f"{why}. A time of day ends before 24:00; make it null, or a duration"
    return f"{why}. Make it a value of its type, or null"


def _of_pandas(frame: Any) -> pa.Table:
    named = [name for name in frame.index.names if name is not None]
    if named:
        unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
        frame = frame.reset_index(level=unnamed, drop=True) if unnamed else frame
        frame = frame.reset_index()
    return pa.Table.from_pandas(frame, preserve_index=False)


def _refuse_objects(frame: Any) -> None:
    """polars gives Python objects to Arrow as the bytes of their addresses."""
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            raise OperatorFailed(
                f"a polars DataFrame has column {name!r} of Python objects, for which Arrow has no type; make it text, "
                "a number, or a struct"
            )


def _plain(table: pa.Table) -> pa.Table:
    """Large strings and lists, and views, are what polars and pandas have in memory; records of one port must be alike."""
    return table.cast(pa.schema([pa.field(field.name, plain_type(field.type)) for field in table.schema]))


def plain_type(kind: Any) -> Any:
    """The type with plain strings, bytes and lists, and the values of dictionaries."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return kind


def is_spark_frame(value: object) -> bool:
    """A DataFrame of Spark, classic or Connect, without importing Spark: a pipeline's module may do without it."""
    return any(
        base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(value).__mro__
    )


def needed_spark_frame(value: Any, what: str) -> Any:
    """`value`, which `what` returned; that begins the sentence of the error. Raises OperatorFailed if it is no DataFrame."""
    if not is_spark_frame(value):
        raise OperatorFailed(f"{what} returned {type_name(value)}; return a DataFrame of Spark")
    return value


def type_name(value: Any) -> str:
    """The type of a value for messages, with its library, and what to do with it if that is known."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{library_of(value)}.{kind.__name__}"
    hint = _HINTS.get(kind.__name__) if library_of(value) in ("pandas", "polars") else None
    return name if hint is None else f"{name} ({hint})"


def library_of(value: Any) -> str:
    """The top-level package of a value's type."""
    return type(value).__module__.partition(".")[0]


def uniform(table: pa.Table) -> pa.Table:
    """Timestamps as timestamp[us] in UTC without zone, dictionaries as their values; names and types alone.

    Metadata and "not null" of a file, or of a Spark plan, would make equal records look different.

    Raises OperatorFailed where a value does not fit into microseconds.
    """
    fields = [pa.field(f.name, uniform_type(f.type)) for f in table.schema]
    try:
        return table.cast(pa.schema(fields))
    except pa.ArrowInvalid as error:
        times = [f.name for f in table.schema if pa.types.is_timestamp(f.type)]
        if not times:
            raise OperatorFailed(f"records cannot be brought into a uniform shape: {error}") from error
        raise OperatorFailed(
            f"a timestamp in column(s) {', '.join(times)} does not fit into microseconds ({error}); nothing is "
            "rounded in silence: rewrite the file with timestamp[us], or leave the column out (columns=...)"
        ) from error


def uniform_type(kind: Any) -> Any:
    """What `uniform` makes of a type."""
    if pa.types.is_dictionary(kind):  # each event would have a dictionary of its own, and no two could be summed up
        return uniform_type(kind.value_type)
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


SCHEMA = "schema"
"""Key of a schema as text: in the first read action of a source whose files have no rows, and in the write action that
begins a run of a `ParquetWriter`."""


def schema_text(schema: pa.Schema) -> str:
    """The schema in Base64; names and types alone."""
    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    return b64encode(plain.serialize().to_pybytes()).decode("ascii")


def schema_of(text: str) -> pa.Schema:
    """What `schema_text` was given. Raises ValueError, ArrowException."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))


def regroup(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `size` rows, the last may be shorter; one chunk each, mostly zero-copy."""
    rest: pa.Table | None = None
    for table in tables:
        begin = 0
        if rest is not None:
            begin = min(size - rest.num_rows, table.num_rows)
            rest = pa.concat_tables([rest, table.slice(0, begin)])
            if rest.num_rows < size:
                continue
            yield rest.combine_chunks()
            rest = None
        full = begin + (table.num_rows - begin) // size * size
        for start in range(begin, full, size):
            yield table.slice(start, size)
        if full < table.num_rows:
            rest = table.slice(full)
    if rest is not None:
        yield rest.combine_chunks()


def has_order(kind: Any) -> bool:
    """Whether values of a type can be compared: those of lists and structs cannot."""
    value = pa.nulls(1, uniform_type(kind))
    try:
        pc.less(value, value)
    except pa.ArrowNotImplementedError:
        return False
    return True


class OrderCheck:
    """Refuses rows out of the ascending order of a column; ties are allowed, nulls and NaN are not.

    `row` is the number, from 0, of the first row it will see. Remembers the last value, so that batches may be cut
    anywhere.
    """

    def __init__(self, file: str, column: str, row: int) -> None:
        self._file = file
        self._column = column
        self._row = row
        self._last: Any = None

    def see(self, table: pa.Table) -> None:
        """Check the next rows; raises SourceNotOrdered with the number of the row and both values."""
        values = table.column(self._column).combine_chunks()
        if not len(values):
            return
        self._refuse_nulls(values)
        if self._last is not None and pc.less(values[0], self._last).as_py():
            self._refuse(0, values[0], self._last)
        place = pc.index(pc.less(values[1:], values[:-1]), True).as_py()
        if place >= 0:
            self._refuse(place + 1, values[place + 1], values[place])
        self._last = values[-1]
        self._row += len(values)

    def _refuse_nulls(self, values: Any) -> None:
        place = pc.index(pc.is_null(values, nan_is_null=True), True).as_py()
        if place >= 0:
            raise SourceNotOrdered(
                f"{self._file}: row {self._row + place:,} (counted from 0) has no {self._column!r} "
                f"({values[place].as_py()}), so it has no place in the order; filter or fill such rows in the file"
            )

    def _refuse(self, place: int, value: Any, before: Any) -> None:
        raise SourceNotOrdered(
            f"{self._file}: row {self._row + place:,} (counted from 0) has {self._column} = {value.as_py()} after "
            f"{before.as_py()}; sort the file by {self._column!r}, or drop ordered_by if nothing relies on the order"
        )


INSET_ID = "inset_id"
"""The column that says which Input Set of the batch a record belongs to; its type is int64, counted from 0."""


def tag_input_sets(held: Sequence[Sequence[pa.Table]], tags: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """All records of the Input Sets, in order, with column ``inset_id`` and one column per tag put in front.

    `held` has the tables of each Input Set, `tags` one value per Input Set. The result has one chunk per column.
    Raises OperatorFailed if the records already have a column of such a name; ValueError if there is no table at all.
    """
    tables = [table for part in held for table in part]
    if not tables:
        raise ValueError("a batch needs at least one Input Set with a table")
    records = pa.concat_tables(tables).combine_chunks()
    counts = [sum(table.num_rows for table in part) for part in held]
    ordinals = np.repeat(np.arange(len(held), dtype=np.int64), counts)
    front = {INSET_ID: pa.array(ordinals)} | {name: tag.take(pa.array(ordinals)) for name, tag in (tags or {}).items()}
    check_free(front, records.column_names)
    return pa.table(front | dict(zip(records.column_names, records.columns, strict=True)))


def split_by_input_set(result: pa.Table, count: int, tag: str = INSET_ID) -> list[pa.Table | None]:
    """The rows of each of the `count` Input Sets, without column `tag`, which says whose they are; None where there are none.

    Rows are ordered by all columns, in their order, so that two runs of one job give equal tables although Spark
    returns rows in any order (columns of nested types cannot be compared and do not take part); times are `uniform`,
    although Spark returns them in the zone of its session. Slices share memory.
    Raises OperatorFailed if `tag` is missing, null, no integer or out of range.
    """
    _check_ordinals(result, count, tag)
    names = [name for name in result.column_names if name != tag]
    keys = [name for name in names if not pa.types.is_nested(result.schema.field(name).type)]
    ordered = uniform(result).combine_chunks()
    ordered = ordered.take(_order(ordered, [tag, *keys])).combine_chunks()
    ordinals = ordered.column(tag).to_numpy()
    bounds = np.searchsorted(ordinals, np.arange(count + 1)).tolist()
    rows = ordered.select(names)
    return [rows.slice(begin, end - begin) if end > begin else None for begin, end in pairwise(bounds)]


def _order(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])


def check_free(tags: Iterable[str], names: Iterable[str]) -> None:
    """Raises OperatorFailed if the records already have a column of the name of a tag, which Spark reads in any case."""
    taken = {name.lower(): name for name in names}
    for tag in tags:
        if tag in taken:
            raise OperatorFailed(
                f"the records have a column {taken[tag]!r}, which the batch needs for itself: rename it"
            )


def check_kept(names: Sequence[str], tag: str = INSET_ID) -> None:
    """Raises OperatorFailed if the columns of a result are without ``inset_id``."""
    if tag not in names:
        raise OperatorFailed(
            f"the result of the Spark function has columns {list(names)}, but not {tag!r}: keep it "
            f"(group by it), it says which Input Set a row belongs to; or leave many=True out"
        )


def _check_ordinals(result: pa.Table, count: int, tag: str) -> None:
    check_kept(result.column_names, tag)
    column = result.column(tag)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise OperatorFailed(
            f"column {tag!r} of the Spark function's result is {column.type} with {column.null_count} nulls; "
            "it must be passed on unchanged"
        )
    if result.num_rows:
        low, high = pc.min_max(column).as_py().values()
        if low < 0 or high >= count:
            raise OperatorFailed(
                f"column {tag!r} of the Spark function's result goes from {low} to {high}, but the batch has "
                f"{count} Input Sets, counted from 0; it must be passed on unchanged"
            )
