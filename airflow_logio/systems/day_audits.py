"""Audits of a day in a table: asked before the rows of a run take the place of those that have its day.

SQL is asked inside the closing transaction, which changes nothing meanwhile, and sees the table as it will be. A function
is asked before that transaction: no lock is held while it works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.database_errors import Fault, fault_of
from airflow_logio.databases import cause_of
from airflow_logio.dataflow.query_text import bare, for_sqlalchemy
from airflow_logio.dataflow.writers.audits import SHOWN, Audit, told
from airflow_logio.errors import OperatorFailed, StatementCutOff, WriteRefused, authored_frames
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.systems.databases.read_values import bound

_READ_ONLY = sa.text("SET LOCAL transaction_read_only = on")
_IS_READ_ONLY = "25006"


# --- SQL --------------------------------------------------------------------------------------------------------------


def ask_queries(connection: Connection, audits: Iterable[Audit], scope: ScopeContender) -> None:
    """Inside the closing transaction: the rows of the run are in the table, and not visible to others.

    Raises `WriteRefused` for the first audit that finds something, and for one that the database does not take.
    """
    for audit in audits:
        if audit.query is None:
            continue
        rows = _rows(connection, audit, SHOWN + 1)
        if rows:
            raise WriteRefused(scope.found_at_fault(audit.name, told(rows)))
        crash_here(CrashPoint.IN_AUDIT)


def rehearse_queries(connection: Connection, audits: Iterable[Audit]) -> None:
    """See that the database takes the queries. They are not executed. Raises `WriteRefused`."""
    for audit in audits:
        if audit.query is not None:
            _rows(connection, audit, 0)


def _rows(connection: Connection, audit: Audit, limit: int) -> Sequence[Mapping[str, Any]]:
    """In a transaction that is rolled back, and that may write nothing (PostgreSQL: in SQLite, a SELECT cannot)."""
    assert audit.query is not None
    dialect = connection.dialect.name
    statement = f"SELECT * FROM (\n{for_sqlalchemy(bare(audit.query))}\n) AS faults LIMIT {limit}"
    values = {name: bound(dialect, value) for name, value in audit.params.items()}
    savepoint = connection.begin_nested()
    try:
        if dialect == "postgresql":
            connection.execute(_READ_ONLY)
        rows = [dict(row) for row in connection.execute(sa.text(statement), values).mappings()]
    except sa.exc.DBAPIError as error:  # all of the transaction is rolled back
        _refuse(audit, error)
    savepoint.rollback()
    return rows


def _refuse(audit: Audit, error: sa.exc.DBAPIError) -> NoReturn:
    """What is wrong with the query itself does not go away while one waits."""
    is_writing = getattr(error.orig, "pgcode", None) == _IS_READ_ONLY
    match fault_of(error):
        case Fault.CUT_OFF:
            raise StatementCutOff(f"audit {audit.name!r}: {cause_of(error)}") from error
        case Fault.LASTING:
            pass
        case _ if not is_writing:
            raise error
    why = f"{'it is to read only: ' if is_writing else ''}{cause_of(error)}"
    raise WriteRefused(f"the database refused audit {audit.name!r}: {why}. It was: {audit.query}") from error


# --- functions --------------------------------------------------------------------------------------------------------


def ask_functions(audits: Iterable[Audit], pages: Iterable[Iterable[pa.Table]], scope: ScopeContender) -> None:
    """Before the closing transaction; `pages` have the records of the run, and are read once for each function.

    Raises `WriteRefused` for the first audit that finds something, `OperatorFailed` if a function raises, and what reading
    the pages raises.
    """
    for audit in audits:
        if audit.function is None:
            continue
        records = _Records(pages)
        try:
            faults = audit.asked(iter(records))
        except Exception as error:
            records.check()
            cause = str(error) if isinstance(error, OperatorFailed) else f"{type(error).__name__}: {error}"
            raise OperatorFailed(f"audit {audit.name!r}: {cause}{authored_frames(error)}") from error
        records.check()
        if faults:
            raise WriteRefused(scope.found_at_fault(audit.name, faults))


class _Records:
    """What a function reads. It may catch what reading raises: then it has not seen all, and its answer says nothing."""

    def __init__(self, pages: Iterable[Iterable[pa.Table]]) -> None:
        self._pages = pages
        self._errors: list[Exception] = []

    def __iter__(self) -> Iterator[pa.Table]:
        try:
            for page in self._pages:
                yield from page
        except Exception as error:
            self._errors.append(error)
            raise

    def check(self) -> None:
        """Raises what reading has raised."""
        for error in self._errors:
            raise error
