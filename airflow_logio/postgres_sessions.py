"""Sessions on PostgreSQL whose settings hold in every transaction, whatever stands between client and server.

A connection pooler gives one server session to many clients in turn: it refuses or drops settings that are asked for when
a connection is made, and what one client sets for its session, the next one gets. So nothing is set for a session. Every
transaction sets what it relies on, in the same message as its first statement, and the server forgets it with the
transaction. What no transaction can have (LISTEN) is not used behind a pooler (`is_pooled`).
"""

from __future__ import annotations

import io
import logging
import re
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, ExecutionContext

from airflow_logio.databases import cause_of
from airflow_logio.errors import ConfigurationError

log = logging.getLogger(__name__)


IDLE_IN_TRANSACTION_SECONDS = 5
AUTOCOMMIT = "AUTOCOMMIT"
"""Isolation level of a connection each of whose statements is a transaction of its own."""
SETTINGS = "logio_settings"
"""Execution option: a mapping of settings that hold, beside those of the engine, in the transactions of a connection."""
_IDLE = "idle_in_transaction_session_timeout"
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
_NAME = re.compile(r"[a-z_][a-z0-9_.]*", re.IGNORECASE)


def postgres_engine(url: URL, application: str, *, lock_timeout: float, **options: Any) -> Engine:
    """An engine with durable transactions that cannot outlive their client for long; `lock_timeout` is in seconds.

    Settings in the URL itself (``?options=-csearch_path%3Dlogio``) apply as well, except those that are set here.
    `options` are SQLAlchemy's. Raises `ConfigurationError` for options that are no settings.
    """
    settings = {
        **_asked_for(url),
        "synchronous_commit": "on",
        "timezone": "UTC",
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
        connect_args=arguments,
        **options,
    )
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
        connection = psycopg2.connect(
            engine.url.set(drivername="postgresql").render_as_string(hide_password=False), connect_timeout=5
        )
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
        first = _setting({**settings, **options.get(SETTINGS, {})})
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


def _asked_for(url: URL) -> dict[str, str]:
    """The settings in the URL's options. If one has two values, the last one counts, as it does for the server."""
    options = url.query.get("options", ())
    words = shlex.split(" ".join((options,) if isinstance(options, str) else options))
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word += words.pop(0)
        name, is_setting, value = word.removeprefix("-c").removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith(("-c", "--")) or not is_setting or not _NAME.fullmatch(name) or set(value) & set("'%\\"):
            raise ConfigurationError(
                f"the options of a database URL must be settings (options=-csearch_path%3Dlogio); {word!r} is none"
            )
        found[name.lower()] = value
    return found


# --- a transaction that stays open while its client works on something else -------------------------------------------

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
            except sa.exc.SQLAlchemyError as error:  # who uses it next notices
                log.warning("a session that was to stay open has ended: %s", cause_of(error))
                return

    pinging = threading.Thread(target=ping, name="logio-ping", daemon=True)
    pinging.start()
    try:
        yield
    finally:
        ended.set()
        pinging.join()
