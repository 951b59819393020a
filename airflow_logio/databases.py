"""What the log and warehouses share: how a database is named, reached and made durable, and what its errors mean.

A URL is checked, and shown without its password. Transactions are durable (SQLite: `synchronous=FULL`). TLS, and whatever
else libpq takes, is set in the URL's query (``?sslmode=verify-full``). What libpq does not know is refused by its name.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa
import tenacity
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, ExecutionContext, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from airflow_logio.errors import ConfigurationError
from airflow_logio.refused_connections import is_for_person, refusals

log = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS = 20
_PRIMARY = 0xFF
"""The byte of a code of SQLite that has no further detail."""


# --- URLs -------------------------------------------------------------------------------------------------------------


def read_url(url: str) -> URL:
    """The parts of a URL of any kind of database. Raises `ConfigurationError`, which never repeats the URL.

    Every PostgreSQL is reached with psycopg2, which this package brings along: plain ``postgresql://`` means another driver
    from SQLAlchemy 2.1 on, and Airflow writes ``postgres://``, which SQLAlchemy does not know. Its URL is as
    `of_postgres` has it.
    """
    parsed = _several_hosts(url) or _parsed(url)
    is_postgres = parsed.drivername == "postgres" or parsed.get_backend_name() == "postgresql"
    return of_postgres(parsed.set(drivername="postgresql+psycopg2")) if is_postgres else parsed


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts repeat parts of the URL: chain none of them
        raise ConfigurationError(
            "the database URL cannot be parsed; expected e.g. postgresql://user@host/name, with special characters of "
            "the password written as %XX, or sqlite:////folder/name.db"
        ) from None


def with_driver(url: str) -> str:
    """A connection's URL as authors' code gets it: of PostgreSQL in the form that Airflow's connections have, too."""
    scheme, rest = url.partition("://")[::2]
    return f"postgresql+psycopg2://{rest}" if scheme in ("postgres", "postgresql") else url


def parse_url(url: str) -> URL:
    """The parts of the URL of a database that keeps all guarantees: PostgreSQL, or SQLite in a file.

    Raises `ConfigurationError`, whose message never repeats the password.
    """
    parsed = read_url(url)
    if parsed.host and "@" in parsed.host:
        # What stands behind the first @ of a password would become the host, and appear in every message.
        raise ConfigurationError("the database URL has two @: write an @ of the password as %40")
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed
    if backend == "sqlite":
        if parsed.query:
            raise ConfigurationError(
                f"the URL of an SQLite file has {', '.join(map(repr, parsed.query))} behind a '?': LOG.io takes the path "
                "only, and sets by itself how the file is opened"
            )
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigurationError("an SQLite database for LOG.io must be a file: its processes have to share it")
        if not Path(parsed.database).is_absolute():
            raise ConfigurationError(
                f"the SQLite database {parsed.database!r} must be an absolute path (sqlite:////...): its processes work in "
                "folders of their own"
            )
        return parsed.set(drivername="sqlite")
    raise ConfigurationError(f"{shown(parsed)}: databases of kind {backend!r} are not supported")


def sqlite_file(url: str) -> Path | None:
    """The file that an SQLite URL names; None for a server, a database in memory, or a URL that cannot be parsed."""
    try:
        parsed = read_url(url)
    except ConfigurationError:
        return None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database.startswith((":", "file:")):
        return None
    return Path(parsed.database).absolute()


def with_absolute_path(url: str) -> str:
    """A URL whose relative SQLite path is seen from this folder; any other URL as it is."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not separator or not path or path.startswith((":", "/")):
        return url
    return f"{scheme}:///{in_url(Path.cwd())}/{path}"


def sqlite_url(path: Path) -> str:
    """An SQLite file, as an absolute URL; its folder is made, readable by its owner only."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return f"sqlite:///{in_url(path)}"


def in_url(path: Path) -> str:
    """A path as part of a URL, where % and ? have a meaning."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def shown(url: URL) -> str:
    """A URL for messages: no password, and no query part either, which may hold another one; but several hosts."""
    hosts = url.query.get("host")
    told = url.set(host=hosts) if isinstance(hosts, str) and not hosts.startswith("/") else url
    return told.set(query={}).render_as_string(hide_password=True)


# --- URLs of PostgreSQL: what libpq takes -----------------------------------------------------------------------------

SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
"""Options of libpq that no message, argument or setting may show."""
FILES = ("passfile", "servicefile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslrootcert")
"""Options of libpq that name a file, or a folder: from where the process works that connects."""
_FIELDS = {"user": "username", "password": "password", "dbname": "database"}
"""Option of libpq → part of a URL."""
_SEVERAL = re.compile(r"(postgres(?:ql)?(?:\+\w+)?://(?:[^/?#]*@)?)([^@/?#]*,[^@/?#]*)([/?#].*)?", re.DOTALL)
"""What is before several hosts, these, and what is behind them."""
_HOST = re.compile(r"\[(?P<six>[^\[\]]*)\](?::(?P<port6>\d*))?|(?P<name>[^:/@]*)(?::(?P<port>\d*))?")


def of_postgres(url: URL) -> URL:
    """The URL in one form, whichever way it was written: `host` and `port` are in its query, as libpq has them, if there are
    several hosts or a socket's folder; user, password and database never are.

    Raises `ConfigurationError`, naming what libpq does not know, what is said twice, and files by relative paths.
    """
    query: dict[str, str] = {}
    for name, value in url.query.items():
        if not is_of_libpq(name):
            raise ConfigurationError(f"the database URL has {unknown_option(name)}")
        several = {"options": " ", "host": ","}.get(name)
        if not isinstance(value, str) and several is None:
            raise ConfigurationError(f"the database URL says {name!r} several times: say it once")
        query[name] = value if isinstance(value, str) else (several or "").join(value)
        if name in FILES and not _is_found_anywhere(name, query[name]):
            raise ConfigurationError(
                f"the database URL has {name!r} as the relative path {query[name]!r}, and processes work in folders of "
                "their own: give an absolute path (libpq knows no ~)"
            )
    for name, part in _FIELDS.items():
        if name in query:
            _refuse_twice(name, getattr(url, part))
            given: dict[str, Any] = {part: query.pop(name)}
            url = url.set(**given)
    return _with_hosts(url, query)


def _is_found_anywhere(name: str, path: str) -> bool:
    return not path or Path(path).is_absolute() or (name, path) == ("sslrootcert", "system")


def _with_hosts(url: URL, query: dict[str, str]) -> URL:
    host = url.host or ""
    if "@" in host:  # what stands behind the first @ of a password: `parse_url` refuses it
        return url.set(query=query)
    if "host" in query:
        _refuse_twice("host", host)
    if "port" in query:
        _refuse_twice("port", url.port)
    host = (unquote(host) if host.upper().startswith("%2F") else host) or query.pop("host", "")
    names, ports = _names_and_ports(host)
    if ports.strip(","):
        _refuse_twice("port", query.get("port") or url.port)
    port = (ports.strip(",") and ports) or str(url.port or query.pop("port", ""))
    is_plain = not names.startswith(("/", "@")) and "," not in f"{names}{port}"
    if names and is_plain and (not port or port.isdecimal()):
        return url.set(host=names, port=int(port) if port else None, query=query)
    # None does not take a part out of a URL: it is made without them.
    return URL.create(
        url.drivername,
        username=url.username,
        password=url.password,
        database=url.database,
        query={**query, **({"host": names} if names else {}), **({"port": port} if port else {})},
    )


def _names_and_ports(hosts: str) -> tuple[str, str]:
    """Each host without its port, and the ports, as libpq takes both: the name of a socket's folder has none."""
    found = [_HOST.fullmatch(one) for one in hosts.split(",")]
    names = [one["six"] or one["name"] if one else told for one, told in zip(found, hosts.split(","), strict=True)]
    ports = [(one["port6"] or one["port"] or "") if one else "" for one in found]
    return ",".join(name or "" for name in names), ",".join(ports)


def _several_hosts(url: str) -> URL | None:
    """A URL that has several hosts with ports, as libpq writes it, which SQLAlchemy cannot parse; None for any other."""
    found = _SEVERAL.fullmatch(url)
    if found is None or ":" not in found[2]:
        return None
    try:
        make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        without = _parsed(f"{found[1]}{found[3] or ''}")
        if "host" in without.query:
            raise ConfigurationError("the database URL says 'host' twice: before its query, and in it") from None
        return without.update_query_dict({"host": found[2]})
    return None


def _refuse_twice(name: str, before: object) -> None:
    if before:
        raise ConfigurationError(f"the database URL says {name!r} twice: before its query, and in it")


@cache
def is_of_libpq(name: str) -> bool:
    """Whether the libpq that is installed knows a connection option."""
    from psycopg2 import ProgrammingError
    from psycopg2.extensions import parse_dsn

    if not re.fullmatch("[a-z_]+", name):
        return False
    try:
        parse_dsn(f"{name}=''")
    except ProgrammingError:
        return False
    return True


def unknown_option(name: str) -> str:
    """What is wrong with an option, and what to do, behind a verb."""
    return (
        f"{name!r}, which is neither an option of libpq (PostgreSQL's client) nor one of LOG.io: correct it or leave it out. "
        "Settings of the server are written options=-c NAME=VALUE"
    )


# --- engines of SQLite, and of any other database ---------------------------------------------------------------------


def sqlite_engine(url: URL, *, durable: bool = True, busy_timeout: float | None = None) -> Engine:
    """An SQLite file in WAL mode whose transactions are begun IMMEDIATE, unless option `logio_writes` is False.

    A transaction that has to wait for another writer waits for `busy_timeout` seconds, BUSY_TIMEOUT_SECONDS if it is None.
    """
    path = Path(str(url.database))
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of the SQLite database {path} does not exist; create it first")
    seconds = BUSY_TIMEOUT_SECONDS if busy_timeout is None else busy_timeout
    engine = sa.create_engine(url, connect_args={"timeout": seconds, "check_same_thread": False}, hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: sqlite3.Connection, _record: object) -> None:
        dbapi.isolation_level = None  # transactions are begun by us: BEGIN IMMEDIATE, never upgraded
        cursor = dbapi.cursor()
        _set_wal(cursor)
        cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        cursor.execute("PRAGMA wal_autocheckpoint=4000")
        cursor.execute("PRAGMA cache_size=-16000")
        cursor.close()

    @sa.event.listens_for(engine, "handle_error")
    def _on_error(context: ExceptionContext) -> None:
        _name_file(path, context.original_exception)

    @sa.event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("logio_writes", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _name_file(path: Path, error: BaseException | None) -> None:
    """SQLite says no more than "unable to open database file": here it says which file, and why, with the code of that."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if not isinstance(error, sqlite3.Error) or code & _PRIMARY not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB):
        return
    why = "; name an SQLite file, or move this one away"
    if code & _PRIMARY == sqlite3.SQLITE_CANTOPEN:
        why, error.sqlite_errorcode = _why_not_opened(path, code)
    error.args = (f"{error}: {path}{why}",)


def _why_not_opened(path: Path, code: int) -> tuple[str, int]:
    """What keeps this process from a file, in words, and the code of SQLite for that: another one than `code` if it lasts."""
    folder = path.parent
    if not folder.is_dir():  # perhaps its disk is not mounted
        return f"; the folder {folder} is not there", code
    if path.is_dir():
        return " is a folder; name a file in it", sqlite3.SQLITE_PERM
    for place, kind, needed in ((path, "file", os.R_OK | os.W_OK), (folder, "folder", os.R_OK | os.W_OK | os.X_OK)):
        if place.exists() and not os.access(place, needed):
            return f"; this user may not read and write the {kind} {place}: grant it that", sqlite3.SQLITE_PERM
    return "", code


@contextmanager
def savepoint(connection: Connection) -> Iterator[sa.NestedTransaction]:
    """A part of a transaction, of any database, that is undone if it raises.

    When its disk is full, SQLite ends the whole transaction. It then has no savepoint to go back to, and its error of that
    would hide what has happened.
    """
    try:
        with connection.begin_nested() as part:
            yield part
    except sa.exc.DBAPIError as error:
        # What was handled when there was none to go back to.
        ended = None if error.orig is None else error.orig.__context__
        if str(error.statement).startswith("ROLLBACK TO") and isinstance(ended, sa.exc.DBAPIError):
            raise ended from ended.orig
        raise


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite refused a statement because another process held the lock for too long."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_BUSY


def _set_wal(cursor: sqlite3.Cursor) -> None:
    """Retries: SQLite itself does not wait if another process makes the same new file a WAL database at the same moment."""
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_busy),
        wait=tenacity.wait_random(0.01, 0.05),
        stop=tenacity.stop_after_delay(BUSY_TIMEOUT_SECONDS),
        reraise=True,
    )
    again(cursor.execute, "PRAGMA journal_mode=WAL")


def plain_engine(url: URL, owner: str, **options: Any) -> Engine:
    """An engine of any database that SQLAlchemy reaches, with the guarantees of that database; `options` are SQLAlchemy's.

    Raises `ConfigurationError` if it cannot be made, saying whose URL that is (`owner`) and never repeating it.
    """
    try:
        return sa.create_engine(url, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError, ValueError):
        # Their texts repeat parts of the URL.
        raise ConfigurationError(
            f"the URL of {owner} cannot be used: it cannot be parsed, or its driver is not installed"
        ) from None


def snapshot_options(engine: Engine) -> dict[str, Any]:
    """Execution options of a connection whose transactions read one consistent snapshot, and write nothing."""
    return {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {"logio_writes": False}


# --- sessions on PostgreSQL -------------------------------------------------------------------------------------------

# Settings hold in every transaction, whatever stands between client and server. A connection pooler gives one server session
# to many clients in turn: it refuses or drops settings that are asked for when a connection is made, and what one client sets
# for its session, the next one gets. So nothing is set for a session. Every transaction sets what it relies on, in the same
# message as its first statement, and the server forgets it with the transaction. What no transaction can have (LISTEN) is not
# used behind a pooler (`is_pooled`).


IDLE_IN_TRANSACTION_SECONDS = 5
AUTOCOMMIT = "AUTOCOMMIT"
"""Isolation level of a connection each of whose statements is a transaction of its own."""
SETTINGS = "logio_settings"
"""Execution option: a mapping of settings that hold, beside those of the engine, in the transactions of a connection."""
_IDLE = "idle_in_transaction_session_timeout"
_LOOKS = "client_connection_check_interval"
_LOOKED_FOR: Mapping[str, str] = MappingProxyType({_LOOKS: "2s"})
SNAPSHOT = "logio_snapshot"
"""Execution option: the id of an exported snapshot, which the transactions of a connection (REPEATABLE READ) read."""
COPY = "logio_copy"
"""Execution option: the statement is COPY ... FROM STDIN, and its one parameter is what is copied, as bytes."""
COPY_TO = "logio_copy_to"
"""Execution option: a binary file. It takes the rows of the query, by COPY ... TO STDOUT in binary; the result has none."""
_COPY_BYTES = 1 << 16
_REMEDY = (
    "connect to the server itself, or through a pooler that keeps a transaction on one session (PgBouncer: pool_mode = "
    "session or transaction)"
)
_UNSET = "logio_unset"
_FIRST = "logio_first"
_OWN = "logio_own"
"""In a connection's `info`: settings of its transactions that not every server has."""
_NAME = re.compile(r"[a-z_][a-z0-9_.]*", re.IGNORECASE)


IN_UTC: Mapping[str, str] = MappingProxyType({"timezone": "UTC"})
"""Settings of transactions in which we cast times ourselves. All others have the zone that any client gets: of the URL, the
role, the database or the server."""


def postgres_engine(
    url: URL,
    application: str,
    *,
    lock_timeout: float,
    settings: Mapping[str, str] = MappingProxyType({}),
    ends_with_client: bool = False,
    **options: Any,
) -> Engine:
    """An engine with durable transactions that cannot outlive their client for long; `lock_timeout` is in seconds.

    `ends_with_client`: a server that can (PostgreSQL 14 and later) looks for its client while a statement is under way, and
    ends the statement of one that is gone. Settings in the URL itself (``?options=-csearch_path%3Dlogio``) apply as well,
    except `settings` and those that are set here. `options` are SQLAlchemy's. Raises `ConfigurationError` for options that
    are no settings.
    """
    asked = _asked_for(url)
    settings = {
        **asked,
        **settings,
        "synchronous_commit": "on",
        "extra_float_digits": "3",  # all that a double has
        "datestyle": "ISO",  # psycopg2 says so once for a session, and a pooler may have others
        _IDLE: f"{IDLE_IN_TRANSACTION_SECONDS}s",
        "lock_timeout": f"{int(lock_timeout * 1000)}ms",
    }
    arguments = {
        "application_name": application,
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 8000,
    }
    engine = sa.create_engine(
        url.difference_update_query(["options"]),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        **options,
    )
    _ask_why_refused(engine)
    if asked:
        _try_at_once(engine, asked)
    if ends_with_client and _LOOKS not in asked:
        _look_for_client(engine)
    _set_in_every_transaction(engine, settings)
    _execute_what_is_apart(engine)
    return engine


def idle_for(seconds: float, others: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Execution options of a connection whose client may work for so long between two statements of a transaction; `others`
    are its other settings.

    For transactions that read: they lock no rows. Those that write are ended by the server after
    `IDLE_IN_TRANSACTION_SECONDS`, so that a client that has stopped holds up no other.
    """
    return {SETTINGS: {**others, _IDLE: f"{seconds:g}s"}}


def check_settings(connection: Connection, where: str) -> None:
    """Raise `ConfigurationError`, naming setting and remedy, unless this transaction has what it relies on."""
    wanted = {"synchronous_commit": "on", _IDLE: f"{IDLE_IN_TRANSACTION_SECONDS}s"}
    names = (*wanted, "lock_timeout")
    found = connection.execute(sa.select(*(sa.func.current_setting(name).label(name) for name in names))).one()
    for name, value in wanted.items():
        if getattr(found, name) != value:
            raise ConfigurationError(
                f"{where}: {name} is {getattr(found, name)!r} in a transaction that has set it to {value!r}, so commits "
                f"would not be safe; {_REMEDY}"
            )
    if found.lock_timeout == "0":
        raise ConfigurationError(
            f"{where}: lock_timeout is '0' in a transaction that has set it, so locks of a driver that has stopped would be "
            f"waited for without an end; {_REMEDY}"
        )


def check_encoding(connection: Connection, where: str) -> None:
    """Raise `ConfigurationError`, naming the remedy, unless the database keeps any text: other encodings than UTF-8 refuse
    characters, or do not know which ones they have."""
    encoding = connection.execute(sa.select(sa.func.current_setting("server_encoding"))).scalar_one()
    if encoding != "UTF8":
        raise ConfigurationError(
            f"{where} has the encoding {encoding}, which cannot keep every text; make one with CREATE DATABASE ... "
            "ENCODING 'UTF8' TEMPLATE template0, and name that one (a log that is there already: restore a dump of it there, "
            "pg_dump --encoding=UTF8, or finish its runs with the version of airflow_logio that has made it)"
        )


def check_transactions(engine: Engine, where: str) -> None:
    """Raise `ConfigurationError` if there is a pooler that answers single statements, but allows no transaction.

    To be asked when a transaction has failed: such a pooler just closes the connection.
    """
    import psycopg2  # SQLAlchemy begins a transaction as soon as it has connected

    try:
        _, asked = engine.dialect.create_connect_args(engine.url)
        connection = psycopg2.connect(**{"connect_timeout": 5, **asked})
    except psycopg2.Error:  # nothing answers: what failed has told why
        return
    with closing(connection):
        connection.autocommit = True
        try:
            pooled = is_pooled(connection)
        except psycopg2.Error:
            return
        try:
            connection.cursor().execute("BEGIN")
        except psycopg2.Error:
            if pooled:
                raise ConfigurationError(
                    f"{where}: the pooler in front of it allows no transactions; {_REMEDY}"
                ) from None


def is_pooled(connection: Any) -> bool:
    """Whether a connection of psycopg2 ends at a pooler: the process that answers is not the one that was promised."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (answers,) = cursor.fetchone()
    return bool(answers != connection.info.backend_pid)


def _ask_why_refused(engine: Engine) -> None:
    """A connection that is refused in words that are not known gets the server's codes, which `is_misconfigured` reads."""

    @sa.event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        import psycopg2

        try:
            return psycopg2.connect(*arguments, **options)
        except psycopg2.OperationalError as error:
            if not _is_refused_in_words(error):
                vars(error)[_CODES] = refusals(options)
            raise


def _try_at_once(engine: Engine, asked: Mapping[str, str]) -> None:
    """Settings of a URL are set once in a transaction of their own: what the server refuses of them is an error of the URL,
    and of no statement that comes after them in one message."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: Any, _record: object) -> None:
        from psycopg2 import Error, OperationalError

        try:
            with dbapi.cursor() as cursor:
                cursor.execute(_setting(asked))
            dbapi.rollback()
        except Error as error:
            if dbapi.closed:  # the server, or what is before it, has closed it
                raise
            dbapi.close()
            raise OperationalError(f"{_REFUSED}: {str(error).strip()}; correct or leave out that one") from error


def _look_for_client(engine: Engine) -> None:
    """In the transactions of each connection whose server can. One of an earlier version does not know the setting, and some
    systems cannot look: each connection is asked once, in a transaction of its own. A pooler may answer instead."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: Any, record: ConnectionPoolEntry) -> None:
        from psycopg2 import Error

        try:
            with dbapi.cursor() as cursor:
                cursor.execute(_setting(_LOOKED_FOR))
            dbapi.rollback()
        except Error as error:
            if dbapi.closed:
                raise
            dbapi.rollback()
            log.debug("statements of a process that has ended may run on: %s", str(error).strip())
        else:
            record.info[_OWN] = _LOOKED_FOR


def _set_in_every_transaction(engine: Engine, settings: Mapping[str, str]) -> None:
    @sa.event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.info[_UNSET] = True

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def _on_first_statement(
        connection: Connection, cursor: Any, statement: str, parameters: Any, context: ExecutionContext, many: bool
    ) -> tuple[str, Any]:
        options = connection.get_execution_options()
        begins = connection.info.pop(_UNSET, False)
        if not begins and options.get("isolation_level") != AUTOCOMMIT:
            return statement, parameters
        first = _setting({**settings, **connection.info.get(_OWN, {}), **options.get(SETTINGS, {})})
        if snapshot := options.get(SNAPSHOT):  # before any query
            first = f"SET TRANSACTION SNAPSHOT '{snapshot}'; {first}"
        copies = context.execution_options.keys() & {COPY, COPY_TO}
        if cursor.name is None and not copies:
            return f"{first}; {statement}", parameters
        # What a cursor of the server is declared for is one statement, and COPY is put together by `_execute_what_is_apart`:
        # there the settings go before it.
        assert not many and not context.execution_options.get("no_parameters"), statement
        context.execution_options = context.execution_options.union({_FIRST: first})
        return statement, parameters


def _execute_what_is_apart(engine: Engine) -> None:
    """Settings that go before a statement, and COPY: what it takes is no parameter, and what it gives is no result. By way of
    this event, SQLAlchemy translates errors and drops what is disconnected."""

    @sa.event.listens_for(engine, "do_execute")
    def _on_execute(cursor: Any, statement: str, parameters: Any, context: ExecutionContext) -> bool:
        options = {} if context is None else context.execution_options
        first = f"{options[_FIRST]}; " if _FIRST in options else ""
        if (target := options.get(COPY_TO)) is not None:
            asked = cursor.mogrify(first) if first else b""
            query = b"%bCOPY (%b) TO STDOUT (FORMAT binary)" % (asked, cursor.mogrify(statement, parameters))
            cursor.copy_expert(query, target, _COPY_BYTES)
            return True
        if options.get(COPY):
            cursor.copy_expert(f"{first}{statement}", io.BytesIO(parameters[0]), _COPY_BYTES)
            return True
        if first:
            with cursor.connection.cursor() as another:
                another.execute(options[_FIRST])
        return False  # SQLAlchemy executes it


def _setting(settings: Mapping[str, str]) -> str:
    """One statement. Values have neither quotes nor per cent signs (`_asked_for`)."""
    calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"SELECT {calls}"


_ISOLATION = ("default_transaction_isolation", "default_transaction_deferrable", "transaction_isolation")
_READ_ONLY = "default_transaction_read_only"


def _asked_for(url: URL) -> dict[str, str]:
    """The settings in the URL's options. If one has two values, the last one counts, as it does for the server."""
    words = _words(str(url.query.get("options", "")))
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word += words.pop(0)
        name, is_setting, value = word.removeprefix("-c").removeprefix("--").partition("=")
        name = name.replace("-", "_").lower()
        if not word.startswith(("-c", "--")) or not is_setting or not _NAME.fullmatch(name) or set(value) & set("'%\\"):
            raise ConfigurationError(
                f"the options of a database URL must be settings (options=-csearch_path%3Dlogio), without ', % and \\ in "
                f"their values; {word!r} is none"
            )
        if name in _ISOLATION:
            raise ConfigurationError(
                f"the options of a database URL set {name}, which LOG.io sets by itself: leave it out"
            )
        # The default would come too late: settings are made when the transaction has begun.
        found["transaction_read_only" if name == _READ_ONLY else name] = value
    return found


def _words(options: str) -> list[str]:
    """As the server separates them: by white space, and a backslash takes the next character for what it is."""
    parts = re.findall(r"(?:\\.|[^\s\\])+", options, re.DOTALL)
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in parts]


PING_SECONDS = 10.0


@contextmanager
def kept_open(connection: Connection, every: float | None = None) -> Iterator[None]:
    """Within the block, which does not use the connection, its transaction stays open for as long as this process runs.

    The server would take the session for one that stands still. A process that is stopped sends nothing, so the server ends
    its session as it ends any other.
    """
    ended, seconds = threading.Event(), PING_SECONDS if every is None else every

    def ping() -> None:
        while not ended.wait(seconds):
            try:
                connection.execute(sa.select(sa.literal(1)))
            except sa.exc.SQLAlchemyError as error:  # its next user notices
                log.warning("a session that was to stay open has ended: %s", cause_of(error))
                return

    pinging = threading.Thread(target=ping, name="logio-ping", daemon=True)
    pinging.start()
    try:
        yield
    finally:
        ended.set()
        pinging.join()


# --- errors -----------------------------------------------------------------------------------------------------------
_REFUSED = "the server refuses what the options of the database URL set"
_MISCONFIGURED = (
    "authentication failed",  # of a password, a peer, or whatever a pooler trusts
    "authentication method requirement",
    "is not permitted to log in",
    "permission denied for database",
    "channel binding required",
    "certificate verify failed",
    "does not match host name",  # of a certificate
    "no password supplied",
    "no pg_hba.conf entry",
    '" does not exist',
    "unsupported startup parameter",
    "no such database:",  # this one and the next: PgBouncer
    "no such user",
    "server does not support SSL",
    "for connection option",
)
_MISWRITTEN = ("invalid ", "definition of service ", "service file ", "could not match ", "missing ")
"""What libpq says of its own options, before it has asked any server: ``invalid sslmode value: "ja"``."""


def is_misconfigured(error: Exception) -> bool:
    """Whether a connection was refused because of its URL. A server that is starting, full or gone answers differently, so
    does a database that an administrator has closed for a while (ALLOW_CONNECTIONS false): these are waited for."""
    return is_for_person(getattr(getattr(error, "orig", error), _CODES, ())) or _is_refused_in_words(error)


_CODES = "logio_refused_with"
"""What an error of psycopg2 has if the server was asked for its codes."""


def _is_refused_in_words(error: Exception) -> bool:
    """In those of libpq itself, of poolers, and of a server that speaks English."""
    text = cause_of(error)
    if text.startswith(_REFUSED):
        return True
    if text.startswith(_MISWRITTEN) and "connection to server" not in text:
        return True
    return "connection to server" in text and any(phrase in text for phrase in _MISCONFIGURED)


def cause_of(error: Exception) -> str:
    """What the database itself says about an error of SQLAlchemy, without the statement."""
    return str(getattr(error, "orig", None) or error).strip()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise `ConfigurationError` for whatever a database refuses: `what`, and the database's own words."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise ConfigurationError(f"{what}: {cause_of(error)}") from error
