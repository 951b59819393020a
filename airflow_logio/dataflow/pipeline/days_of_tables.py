"""Which days of which tables a source reads, as its author says it: ``days=`` of `Pipeline.source`.

What a query reads is not known without understanding it, and what a view stands for not at all. So it is the author's word,
for marks only: no row is read, or left out, by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.names import check_name, check_table
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline.days import Days, Hours
from airflow_logio.dataflow.placeholders import filled, placeholders_of
from airflow_logio.errors import ConfigurationError, LogioError, PipelineDefinitionError, authored_frames

WhichDays = str | Iterable[str] | Callable[[Mapping[str, Any]], str | Iterable[str]]
"""``"day={day}"``, or a range, ``"day={first}..{last}"``; or several of them; or what makes them of the run's parameters."""
_STORED_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d(\d\d){0,2}Z")
_MOST = 1_000
_WRITE = "write days={'top': 'day={day}'}, as the writer of the table says by=('day',)"


@dataclass(frozen=True, slots=True)
class DaysOfTable:
    """The days, or hours, of one table that a source reads."""

    table: str
    said: tuple[str, ...] | Callable[[Mapping[str, Any]], str | Iterable[str]]

    def placeholders(self) -> frozenset[str]:
        """The parameters that it refers to; those of a function are not known."""
        found = () if callable(self.said) else self.said
        return frozenset().union(*map(placeholders_of, found)) if found else frozenset()

    def scopes(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Each as ``day=2026-03-01``, without repetition. Raises ConfigurationError for what names no days."""
        found = dict.fromkeys(scope for text in self._texts(params) for scope in _scopes(text))
        if len(found) > _MOST:
            raise ConfigurationError(
                f"days of table {self.table!r}: {len(found):,} of them; at most {_MOST:,} are noted"
            )
        return tuple(found)

    def _texts(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        if not callable(self.said):
            return tuple(filled(text, placeholders_of(text), params, "days") for text in self.said)
        try:
            made: object = self.said(params)
            found = (made,) if isinstance(made, str) else tuple(made) if isinstance(made, Iterable) else (made,)
        except LogioError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}{authored_frames(error)}"
            raise ConfigurationError(f"days of table {self.table!r} cannot be told: {cause}") from error
        for one in found:
            if not isinstance(one, str):
                raise ConfigurationError(f"days of table {self.table!r}: the function gave {one!r}; let it give texts")
        return tuple(map(str, found))


def days_of_tables(source: SourceOperator, days: object) -> tuple[DaysOfTable, ...]:
    """What an author has said of a source. Raises PipelineDefinitionError."""
    if days is None:
        return ()
    if not isinstance(days, Mapping) or not days:
        raise PipelineDefinitionError(f"days is {days!r}; {_WRITE}")
    if len(source.sql_connections()) != 1:
        raise PipelineDefinitionError(
            f"days={dict(days)!r} names tables, and a {type(source).__name__} has no SQL connection, or several. A "
            "FolderSource(published=True) of one day notes by itself which run had left it"
        )
    return tuple(DaysOfTable(check_table(table), _said(which)) for table, which in days.items())


def _said(which: object) -> tuple[str, ...] | Callable[[Mapping[str, Any]], str | Iterable[str]]:
    if callable(which):
        return which
    texts = (which,) if isinstance(which, str) else tuple(which) if isinstance(which, Iterable) else ()
    if not texts:
        raise PipelineDefinitionError(f"days are {which!r}; {_WRITE}")
    for text in texts:
        placeholders_of(text, "days")
        name, equals, _ = text.partition("=")
        if not equals:
            raise PipelineDefinitionError(f"days are {text!r}, without the name of the column; {_WRITE}")
        check_name("days of", name)
    return texts


def _scopes(text: str) -> Iterable[str]:
    """Of ``day=A..B``, both included. Raises ConfigurationError."""
    name, equals, which = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"days {text!r} are without the name of the column; {_WRITE}")
    if _STORED_HOUR.fullmatch(which):
        return [text]
    try:
        keys = (Hours if "T" in which else Days)("day").range_of(which)
    except ConfigurationError as error:
        raise ConfigurationError(f"days {text!r}: {error}") from error
    return [f"{name}={key.text}" for key in keys]
