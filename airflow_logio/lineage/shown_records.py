"""Records as tables that people look at, whatever the types and names of their columns are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def rows_at(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """A few records by their places; one by one, since Arrow takes them at once of some types only."""
    return pa.concat_tables([table.slice(place, 1) for place in places]) if places else table.slice(0, 0)


def distinct_names(table: pa.Table) -> pa.Table:
    """With a number behind a name that there is already, so that no column hides another one."""
    names: list[str] = []
    for name in table.column_names:
        number, unique = 2, name
        while unique in names:
            number, unique = number + 1, f"{name} ({number})"
        names.append(unique)
    return table.rename_columns(names)


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of one port under each other: columns whose types have nothing in common become text."""
    if not tables:
        return pa.table({})
    named = [distinct_names(table) for table in tables]
    try:
        return pa.concat_tables(named, promote_options="permissive")
    except pa.ArrowException:
        return pa.concat_tables([_mixed_as_text(table, named) for table in named], promote_options="permissive")


def _mixed_as_text(table: pa.Table, others: Sequence[pa.Table]) -> pa.Table:
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kinds = {one.schema.field(name).type for one in others if name in one.column_names}
        texts = [None if value is None else str(value) for value in column.to_pylist()] if len(kinds) > 1 else None
        columns[name] = column if texts is None else pa.array(texts, pa.string())
    return pa.table(columns)
