"""The day, or hour, whose rows a run owns by their value (design, "Days"), as a `TableWriter` compares records with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Protocol

from airflow_logio.dataflow.arrow import pa, pc
from airflow_logio.dataflow.names import check_columns, did_you_mean, quoted
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

EMPTY = ("refuse", "replace")
AT_THE_END, AT_ONCE = "at the end", "at once"
SWITCHES = (AT_THE_END, AT_ONCE)
"""When the old day goes: when all of the new one is in the log, or with the first write action of the run."""
SHOWN = 5
"""An error shows at most so many values."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def check_by(where: str, by: Iterable[str]) -> tuple[str, ...]:
    """What an author gives as `by`: at most one name. Raises PipelineDefinitionError."""
    if isinstance(by, str):
        raise PipelineDefinitionError(f"{where}: by is the single string {by!r}: write by=({by!r},)")
    names = check_columns(by)
    if len(names) > 1:
        raise PipelineDefinitionError(
            f"{where}: by={names!r} names {len(names)} columns; name one, which has the name of the pipeline's partition"
        )
    return tuple(names)


def check_empty(where: str, empty: str, *, owns: bool) -> str:
    """What an author gives as `empty`, for a writer whose runs own what they write, or not. Raises
    PipelineDefinitionError."""
    if empty not in EMPTY:
        raise PipelineDefinitionError(
            f"{where}: empty={empty!r} is none of {quoted(EMPTY)}.{did_you_mean(empty, EMPTY)}"
        )
    if empty != "refuse" and not owns:
        raise PipelineDefinitionError(
            f"{where}: empty={empty!r} is for writers with by, or with on_new_run='supersede'; leave it out"
        )
    return empty


def check_switch(where: str, switch: str, by: tuple[str, ...], empty: str, *, has_audit: bool) -> str:
    """What an author gives as `switch`, beside `empty` and the audits. Raises PipelineDefinitionError."""
    if switch not in SWITCHES:
        raise PipelineDefinitionError(
            f"{where}: switch={switch!r} is none of {quoted(SWITCHES)}.{did_you_mean(switch, SWITCHES)}"
        )
    if switch == AT_THE_END:
        return switch
    said = f"{where}: switch={AT_ONCE!r}"
    if not by:
        raise PipelineDefinitionError(
            f"{said} is for writers that own their run's day: say on_new_run='overwrite', by=('day',), or leave it out"
        )
    if has_audit:
        raise PipelineDefinitionError(
            f"{said} with an audit: readers see the rows before an audit could. Say switch={AT_THE_END!r}, or leave audit out"
        )
    if empty != "refuse":
        raise PipelineDefinitionError(
            f"{said} with empty={empty!r}: the old day goes before it is known whether there are new rows, so it may become "
            "empty in any case. Leave empty out"
        )
    return switch


class Spanned(Protocol):
    """What is known of some records in files (`payloads.dataset.ColumnSpan`)."""

    @property
    def records(self) -> int: ...
    @property
    def nulls(self) -> int: ...
    @property
    def bounds(self) -> pa.Array | None: ...


@dataclass(frozen=True, slots=True)
class OwnedDay:
    """The partition of a run: its key as a text, and the instant at which it starts."""

    column: str
    key: str
    start: datetime

    @classmethod
    def of_run(cls, name: str, params: Mapping[str, Any]) -> OwnedDay:
        """Of a run with these parameters, in a pipeline whose partition is called `name`."""
        return cls(name, str(params[name]), datetime.fromisoformat(params[f"{name}_start"]).astimezone(UTC))

    @property
    def scope(self) -> str:
        """What the run owns, as ``day=2026-03-01``."""
        return f"{self.column}={self.key}"

    @property
    def is_day(self) -> bool:
        """Whether it is a day, and no hour."""
        return _DAY.fullmatch(self.key) is not None

    def check_records(self, where: str, records: pa.Table) -> None:
        """Raises OperatorFailed for records of another day, or of none, with their count and values."""
        names = records.schema.names
        if names.count(self.column) != 1:
            raise OperatorFailed(
                f"{where}: column {self.column!r}, by which the run owns its rows, is needed, once; the records have "
                f"{names}.{did_you_mean(self.column, names)}"
            )
        column = records.column(self.column)
        is_mine = pc.fill_null(pc.equal(column, self._value(where, column.type)), False)
        if (wrong := len(column) - (pc.sum(is_mine).as_py() or 0)) == 0:
            return
        values = pc.unique(column.filter(pc.invert(is_mine)))
        shown = [None if one is None else str(one) for one in values[:SHOWN].to_pylist()]
        raise OperatorFailed(self.of_others(where, wrong, len(column), shown, len(values)))

    def check_spans(self, where: str, spans: Iterable[Spanned], records: int) -> None:
        """Raises OperatorFailed if statistics of files say that some of the records in them are of another day, or of none.
        They may say nothing: then the records themselves are counted later."""
        wrong, values = 0, dict[str | None, None]()
        for span in spans:
            if span.nulls:
                values[None] = None
            others = self._others(where, span.bounds)
            values |= dict.fromkeys(others)
            is_one = len(set(others)) == 1 and len(others) == 2
            wrong += span.nulls + (span.records - span.nulls if is_one else len(others))
        if wrong:
            shown = list(values)
            least = f"at least {wrong:,}" if wrong < records else f"{wrong:,}"
            raise OperatorFailed(self.of_others(where, least, records, shown[:SHOWN], len(shown)))

    def _others(self, where: str, bounds: pa.Array | None) -> list[str | None]:
        """The least and the greatest value, so far as they are of another day."""
        if bounds is None:
            return []
        is_other = pc.not_equal(bounds, self._value(where, bounds.type))
        return [str(one) for one in bounds.filter(is_other).to_pylist()]

    def of_others(self, where: str, wrong: int | str, records: int, values: Sequence[str | None], distinct: int) -> str:
        """The sentence for records of other days, or of none: some of the `distinct` values that they have."""
        wrong = f"{wrong:,}" if isinstance(wrong, int) else wrong
        shown = ", ".join("null" if one is None else one for one in values)
        more = f", and {distinct - len(values):,} more values" if distinct > len(values) else ""
        return (
            f"{where}: {wrong} of {records:,} records are not of {self.scope}, which the run owns: they have {shown}{more} "
            "there. Records of other days belong to their own runs: let OwnPartition send them elsewhere, or filter them "
            "before the writer"
        )

    def _value(self, where: str, kind: pa.DataType) -> pa.Scalar:
        """The day as a value of a column of records."""
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain):
            return pa.scalar(self.key, plain)
        if self.is_day and pa.types.is_date(plain):
            return pa.scalar(date.fromisoformat(self.key), plain)
        if not self.is_day and pa.types.is_timestamp(plain):
            start = self.start if plain.tz else self.start.replace(tzinfo=None)
            return pa.scalar(start, plain)
        right = "a date or a text" if self.is_day else "a timestamp or a text"
        raise OperatorFailed(
            f"{where}: column {self.column!r}, by which the run owns its rows, is {kind}, and must be {right} such as "
            f"{self.key}: make one of it in an operator before the writer"
        )
