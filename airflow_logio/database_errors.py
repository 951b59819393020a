"""What an error of a database means: wait until it is gone, try a few times, correct the connection, or have a person look.

Decided by what the database itself says, never by words of a message: PostgreSQL by SQLSTATE, SQLite by its result code,
MySQL and MariaDB by number. Classes of Python's DB-API do not tell: SQLite calls a duplicate column *operational*, as it does
a lock, and psycopg2 a statement that took too long. Only where a database says nothing, the class decides. Of a connection
that PostgreSQL has refused, libpq gives no code: the server is asked for it (`refused_connections.py`). Words decide where
libpq itself refuses a URL, which it does in English unless the program has chosen another language; and of poolers.

=============  =======================  ==============================  ==========================
Fault          PostgreSQL               SQLite                          MySQL, MariaDB
=============  =======================  ==============================  ==========================
unavailable    08, 25006, 25P03, 40,    BUSY, LOCKED, NOMEM, IOERR,     shutdown, connections,
               53, 55006, 55P03, 57,    FULL, CANTOPEN, PROTOCOL,       network, locks, deadlocks,
               58, 72, HV00N            SCHEMA, ABORT                   read-only for now
cut off        57014, 25P04             INTERRUPT                       1317, 1969, 3024
lasting        all others, 40002,       all others: ERROR, PERM,        all others of the server
               53400, 57P04, 58P01,     READONLY, CORRUPT, TOOBIG,
               58P02                    CONSTRAINT, MISMATCH, AUTH, ...
misconfigured  refused connections      NOTADB                          access denied, no database
=============  =======================  ==============================  ==========================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from enum import Enum
from typing import Any

import sqlalchemy as sa

from airflow_logio.databases import is_busy, is_misconfigured


class Fault(Enum):
    """What is done about an error."""

    UNAVAILABLE = "it is waited for: away, full, busy, or in conflict with others"
    CUT_OFF = "it is tried a few times: the database, or a person there, has ended the statement before its end"
    LASTING = "a person looks: the next attempt would be told the same"
    MISCONFIGURED = "a person corrects the connection"


_BY_STATE: Mapping[str, Fault] = {
    "08": Fault.UNAVAILABLE,  # connection
    "25006": Fault.UNAVAILABLE,  # read-only: a standby, for now
    "25P03": Fault.UNAVAILABLE,  # idle in a transaction for too long
    "25P04": Fault.CUT_OFF,  # transaction_timeout
    "40": Fault.UNAVAILABLE,  # serialization, deadlock
    "40002": Fault.LASTING,  # a constraint, at the commit
    "53": Fault.UNAVAILABLE,  # disk, memory, connections
    "53400": Fault.LASTING,  # a limit of the configuration, such as temp_file_limit
    "55006": Fault.UNAVAILABLE,  # in use
    "55P03": Fault.UNAVAILABLE,  # locked
    "57": Fault.UNAVAILABLE,  # shutdown, crash, start
    "57014": Fault.CUT_OFF,  # statement_timeout, pg_cancel_backend
    "57P04": Fault.LASTING,  # the database was dropped
    "58": Fault.UNAVAILABLE,  # the disk of the server
    "58P01": Fault.LASTING,  # no such file of an extension
    "58P02": Fault.LASTING,
    "72": Fault.UNAVAILABLE,  # snapshot too old
    "HV00N": Fault.UNAVAILABLE,  # the server behind a foreign table
}
"""The longest beginning of a SQLSTATE that is here decides."""
_LONGEST = 5

# Their numbers, by https://sqlite.org/rescode.html: Python has no names for some.
_BY_RESULT: Mapping[int, Fault] = {
    **dict.fromkeys(
        (
            sqlite3.SQLITE_ABORT,
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_NOMEM,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PROTOCOL,
            sqlite3.SQLITE_SCHEMA,
            513,  # ERROR_RETRY
            769,  # ERROR_SNAPSHOT
        ),
        Fault.UNAVAILABLE,
    ),
    sqlite3.SQLITE_INTERRUPT: Fault.CUT_OFF,
    sqlite3.SQLITE_NOTADB: Fault.MISCONFIGURED,
    526: Fault.LASTING,  # CANTOPEN_ISDIR
    8458: Fault.LASTING,  # IOERR_CORRUPTFS
}
"""An extended code decides before its primary one, which is its lowest byte."""
_PRIMARY = 0xFF

_MYSQL = ("pymysql", "MySQLdb", "mysql", "mariadb")
"""Top-level packages of its drivers."""
_AT_CLIENT = range(2000, 3000)
_BY_NUMBER: Mapping[int, Fault] = {
    **dict.fromkeys(_AT_CLIENT, Fault.UNAVAILABLE),
    **dict.fromkeys(
        (
            *(1021, 1037, 1038, 1040, 1041, 1042, 1043, 1053, 1077, 1079, 1080, 1129),
            *range(1152, 1162),
            *(1184, 1203, 1205, 1206, 1213, 1226, 1290, 1412, 1614, 1637, 1792, 1836, 1927, 4031),
        ),
        Fault.UNAVAILABLE,
    ),
    **dict.fromkeys((1317, 1969, 3024), Fault.CUT_OFF),
    **dict.fromkeys((1044, 1045, 1049, 1698), Fault.MISCONFIGURED),
}


def fault_of(error: sa.exc.DBAPIError) -> Fault:
    """What is done about an error that a database, or its driver, has raised."""
    orig: Any = error.orig
    if isinstance(orig, sqlite3.Error):
        return _of_sqlite(orig)
    if state := getattr(orig, "pgcode", None) or getattr(orig, "sqlstate", None):
        return _of_state(str(state))
    if type(orig).__module__.partition(".")[0] in _MYSQL and orig.args and isinstance(orig.args[0], int):
        return _BY_NUMBER.get(orig.args[0], Fault.LASTING)
    if is_misconfigured(error):
        return Fault.MISCONFIGURED
    is_away = error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
    return Fault.UNAVAILABLE if is_away else Fault.LASTING


def is_lasting(error: sa.exc.DBAPIError) -> bool:
    """Whether the database does not take a statement or a value, now or later."""
    return fault_of(error) is Fault.LASTING


def is_held(error: sa.exc.DBAPIError) -> bool:
    """Whether another session of PostgreSQL or SQLite holds a lock for longer than this one was to wait for it."""
    return is_busy(error.orig) or getattr(error.orig, "pgcode", None) == "55P03"


def is_forbidden(error: sa.exc.DBAPIError) -> bool:
    """Whether an SQLite file may not be written by this process, or not in this way."""
    forbidden = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
    return _result(error.orig) & _PRIMARY in forbidden


def is_no_text(error: Exception) -> bool:
    """Whether a text of a row is not in the encoding of its database, as Python finds when it reads it."""
    if isinstance(error, UnicodeDecodeError):  # psycopg2
        return True
    orig = getattr(error, "orig", None)
    return isinstance(orig, sqlite3.OperationalError) and not _result(orig)


def is_damaged(error: sa.exc.DBAPIError) -> bool:
    """Whether a database says that its own files are damaged."""
    if isinstance(error.orig, sqlite3.Error):
        return _result(error.orig) & _PRIMARY == sqlite3.SQLITE_CORRUPT
    return getattr(error.orig, "pgcode", None) in ("XX001", "XX002")


def _of_state(state: str) -> Fault:
    beginnings = (state[:length] for length in range(_LONGEST, 1, -1))
    return next((_BY_STATE[one] for one in beginnings if one in _BY_STATE), Fault.LASTING)


def _of_sqlite(error: sqlite3.Error) -> Fault:
    """An error without a code is Python's own: a text that is no UTF-8, values that do not fit a statement."""
    result = _result(error)
    return _BY_RESULT.get(result) or _BY_RESULT.get(result & _PRIMARY, Fault.LASTING)


def _result(error: BaseException | None) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK))
