"""Whether PostgreSQL gives rising numbers to the rows of a table, and which transactions may still insert some."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.engine import Connection

from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.table_names import TableName

_FAMILY = """
    WITH RECURSIVE above(oid) AS (
        SELECT CAST(:oid AS oid) UNION SELECT i.inhparent FROM pg_inherits AS i JOIN above ON i.inhrelid = above.oid
    ), below(oid) AS (
        SELECT CAST(:oid AS oid) UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN below ON i.inhparent = below.oid
    ), family AS (SELECT oid FROM above UNION SELECT oid FROM below)
"""
"""The table, what it is a partition of, and its partitions: an insert may name any of them."""
_WRITERS = sa.text(
    _FAMILY
    + """
    SELECT DISTINCT l.virtualtransaction AS id, l.pid, a.xact_start AS since, a.application_name AS application, p.gid
    FROM pg_locks AS l
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND l.virtualtransaction = '-1/' || p.transaction
    WHERE l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM family)
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
)
_MEMBERS = sa.text(
    _FAMILY
    + """
    SELECT c.oid, c.oid::regclass::text AS name, c.relkind, c.relpersistence, a.attnotnull, a.attnum,
        pg_get_expr(d.adbin, d.adrelid) AS "default",
        EXISTS (SELECT FROM pg_subscription_rel AS s WHERE s.srrelid = c.oid) AS is_copy
    FROM family JOIN pg_class AS c USING (oid)
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = :by AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
"""
)
_SEQUENCES = sa.text(
    _FAMILY
    + """
    SELECT DISTINCT s.seqrelid AS oid, s.seqrelid::regclass::text AS name, s.seqcache, s.seqincrement, s.seqcycle,
        q.relpersistence
    FROM family JOIN pg_attribute AS a ON a.attrelid = family.oid AND a.attname = :by AND NOT a.attisdropped
    CROSS JOIN LATERAL (
        SELECT d.refobjid AS oid FROM pg_attrdef AS e JOIN pg_depend AS d ON d.objid = e.oid
        WHERE e.adrelid = family.oid AND e.adnum = a.attnum
            AND d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
        UNION
        SELECT d.objid FROM pg_depend AS d
        WHERE d.refobjid = family.oid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
            AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    ) AS used
    JOIN pg_sequence AS s ON s.seqrelid = used.oid JOIN pg_class AS q ON q.oid = s.seqrelid
"""
)
_INDEXED = sa.text("""
    SELECT EXISTS (
        SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = :oid AND a.attname = :by AND i.indisvalid AND i.indpred IS NULL
    )
""")
_NEXT_VALUE = re.compile(r"\(*nextval\('[^']*'::regclass\)\)*(::\w+)?")


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that may have inserted rows, as `pg_locks` names it."""

    id: str
    is_prepared: bool
    said: str = field(compare=False)

    def __str__(self) -> str:
        return self.said


def not_followed(connection: str, backend: str) -> str:
    """Why a source cannot follow a table of that kind of database."""
    return (
        f"connection {connection!r} is a database of kind {backend!r}: a TableSource reads PostgreSQL and SQLite, which tell "
        "which transactions may still bring smaller numbers. Read the table by a QuerySource, or a SparkSource"
    )


def writers_of(connection: Connection, oid: int) -> frozenset[Holder]:
    """The transactions that hold a lock of writers on a table, its partitions, or what it is a partition of."""
    found = connection.execute(_WRITERS, {"oid": oid})
    return frozenset(Holder(row.id, row.pid is None, _said(row)) for row in found)


def _said(row: sa.Row[Any]) -> str:
    if row.pid is None:
        return f"prepared transaction {row.gid!r}"
    since = "" if row.since is None else f", begun at {row.since:%Y-%m-%d %H:%M:%S} UTC"
    return f"the transaction of pid {row.pid}" + (f" ({row.application})" if row.application else "") + since


def still_waited_for(waited_for: frozenset[Holder], now: frozenset[Holder]) -> frozenset[Holder]:
    """Who of `waited_for` may still bring rows, if all of `now` hold locks.

    PREPARE TRANSACTION gives a transaction another name. So where one has gone, all prepared ones are waited for, too; these
    keep their names until they end.
    """
    gone = waited_for - now
    renamed = now if any(not holder.is_prepared for holder in gone) else frozenset()
    return (waited_for & now) | {holder for holder in renamed if holder.is_prepared}


class Largest(NamedTuple):
    """What one statement has seen."""

    number: int | None
    """The largest one of a row; None without rows."""
    is_standby: bool
    is_told: bool
    """Whether the user may ask the sequence."""
    drawn: int | None
    """The last number that the sequence has given; None if it has given none."""


def largest(connection: Connection, column: sa.Column[Any], sequence: int) -> Largest:
    """Rows and sequence, in this order: the sequence has given what a row has."""
    is_told = sa.func.has_sequence_privilege(sa.cast(sequence, OID), "USAGE, SELECT")
    drawn = sa.case((is_told, sa.func.pg_sequence_last_value(sa.cast(sequence, OID))))
    asked = sa.select(sa.func.max(column), sa.func.pg_is_in_recovery(), is_told, drawn)
    return Largest(*connection.execute(asked).one())


def check_numbers(connection: Connection, name: TableName, by: str, place: str) -> tuple[int, int]:
    """The oids of a table and of the one sequence from which its column `by` is filled, one number after the other.

    Raises `ConfigurationError`, which begins with `place`.
    """
    quoted = f"{name.quoted(connection)}"
    oid = connection.execute(sa.text("SELECT CAST(to_regclass(:name) AS oid)"), {"name": quoted}).scalar_one()
    given = {"oid": oid, "by": by}
    for member in connection.execute(_MEMBERS, given):
        problem = _problem_of(member, by, is_partition=member.oid != oid)
        if problem is not None:
            raise ConfigurationError(f"{place} is read by column {by!r}, and {problem}")
    sequences = connection.execute(_SEQUENCES, given).all()
    if len(sequences) != 1:
        names = ", ".join(sorted(row.name for row in sequences))
        found = f"several sequences ({names})" if sequences else "no sequence"
        raise ConfigurationError(
            f"{place} is read by column {by!r}, which has {found} as its default: only numbers of one sequence rise from row "
            f"to row. Make it an identity column (ALTER TABLE ... ALTER COLUMN {by} ADD GENERATED ALWAYS AS IDENTITY), or "
            "read the table by a SparkSource"
        )
    [sequence] = sequences
    told = f"{place} is read by column {by!r}, whose sequence {sequence.name}"
    if sequence.seqcache != 1:
        raise ConfigurationError(
            f"{told} has CACHE {sequence.seqcache}: a session takes numbers ahead, and inserts them later, below what was "
            f"read. ALTER SEQUENCE {sequence.name} CACHE 1, and have sessions that took numbers before connect anew"
        )
    if sequence.seqincrement < 0 or sequence.seqcycle:
        raise ConfigurationError(f"{told} falls, or begins anew at its end (CYCLE): its numbers do not rise")
    if sequence.relpersistence != "p":
        raise ConfigurationError(f"{told} is not logged: after a crash of the server its numbers begin anew")
    return int(oid), int(sequence.oid)


def _problem_of(member: sa.Row[Any], by: str, *, is_partition: bool) -> str | None:
    what = f"{member.name}, a partition of it or above it," if is_partition else "it"
    if member.relkind not in ("r", "p"):
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        return f"{what} is {kinds.get(str(member.relkind), 'no table')}: nobody can tell here who writes to it"
    if member.relpersistence != "p":
        return f"{what} is not logged: a crash of the server empties it, and its numbers begin anew"
    if not member.attnotnull:
        return (
            f"{what} may have rows without {by}, which would never be read: ALTER TABLE {member.name} ALTER COLUMN {by} "
            "SET NOT NULL"
        )
    if member.default is not None and not _NEXT_VALUE.fullmatch(str(member.default)):
        return f"{what} fills it by {member.default}: numbers rise only as nextval() gives them"
    if member.is_copy:
        return (
            f"{what} is filled by a subscription: rows come in the order of their commits elsewhere, and not of their "
            "numbers. Read the table where it is written"
        )
    return None


def is_indexed(connection: Connection, oid: int, by: str) -> bool:
    """Whether an index finds ranges of the column."""
    return bool(connection.execute(_INDEXED, {"oid": oid, "by": by}).scalar_one())
