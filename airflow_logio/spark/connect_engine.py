"""A session of a Spark Connect server, which has its JVM, executors and compiled code already (ADR-116).

Each incarnation of a group has a session of its own, whose number follows from it: the next driver closes it, with the jobs
that still run in it. A server refuses a session that was closed, so what a zombie sends then is not done.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, SparkLost
from airflow_logio.spark.engine import SparkEngine
from airflow_logio.store.records.driver_records import SparkApplication

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
KEPT_SECONDS = 300.0
"""How often a session says something: a server closes one that has been silent for an hour."""
_RETRIES: Mapping[str, int] = {"max_retries": 5, "initial_backoff": 50, "max_backoff": 1_000, "jitter": 50}
"""How one request is repeated, in milliseconds: for about two seconds. pyspark would try for ten minutes."""
_APPLICATION = "spark.app.id"
ANSWER_SECONDS = 30.0
"""A server that is asked something small has answered by then, or is taken for lost."""
_STOPPED = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
"""What the server says of jobs when its application has ended: it answers, and will not work again."""
EARLIER = 3
"""The sessions of so many incarnations are closed: one of them may have died before it closed the last one's."""
_CLOSED, _REFUSED = "SESSION_CLOSED", ("UNAUTHENTICATED", "PERMISSION_DENIED")
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)
_NAMESPACE = uuid.UUID("5f0c46d7-63a4-4d8a-8f5c-6a9d2b1e7c30")


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """The server, and what each session has. `conf` are properties of ``spark.sql``, `ours` those of them that a user has
    not asked for, and which an older server may not know."""

    url: str | None
    """The address of an existing server; None if the drivers of the run have one of their own."""
    user: str
    """Whose sessions these are, where the URL does not say it."""
    conf: Mapping[str, str] = field(default_factory=dict)
    ours: Sequence[str] = ()
    py_files: Sequence[str] = ()
    """Python files that tasks import, each a .py or .zip."""
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and what it asks its clients for."""

    url: str
    token: str | None = field(default=None, repr=False)
    is_there: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    """Whether the server still runs: asked before each request, which another program could get that has taken its port.
    None if that cannot be told, as of a server elsewhere."""


Address = Callable[[bool], ServerAddress]
"""Where a server is; asked with whether the last one is of no use any more, because its application has ended."""
SILENT_SECONDS = 120.0
"""A server that the drivers of the run have for themselves is replaced when it has not answered a new client for so long."""


@dataclass(frozen=True, slots=True)
class SessionName:
    """The incarnation of a group that has a session; one that stands by is not yet the driver."""

    run_uid: str
    group: str
    incarnation: int
    is_standby: bool = False

    def number(self) -> str:
        """The session's UUID."""
        kind = "standby" if self.is_standby else "driver"
        return str(uuid.uuid5(_NAMESPACE, f"{self.run_uid}/{self.group}/{self.incarnation}/{kind}"))


class ConnectEngine(SparkEngine):
    """As `SparkEngine`. Raises `ConfigurationError` where the server refuses token, settings or code. If it does not answer:
    `ExternalUnavailable` after `patience` for an existing server, `SparkLost` for one that the drivers start themselves."""

    def __init__(self, target: ConnectTarget, name: SessionName, address: Address) -> None:
        """`address` says where the server is; it may have to start it."""
        self._target = target
        self._name = name
        self._address = address
        self._plans: Any = None
        self._actions: dict[str, list[str]] = {}
        self._server: ServerAddress | None = None
        """The last one that was found."""
        self._is_known = threading.Event()
        self._has_ended = False
        self._stopped = threading.Event()

    def import_spark(self) -> None:
        """As `SparkEngine`. From now on functions of pyspark.sql mean those of Connect, also where the author's module uses
        them when it is imported."""
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        # pyspark warns of every pandas that is newer than itself; nothing here uses it.
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
        import pyspark.sql.connect.session  # noqa: F401

        from airflow_logio.spark.connect_channels import ExecutedPlans

        self._plans = ExecutedPlans()

    def made(self) -> Any:
        """As `SparkEngine`. Waits for a server that does not answer."""
        session, url = self._answering()
        try:
            self._furnish(session, url)
        except LogioError:
            raise
        except Exception as error:
            if not self.is_lost(session, error):
                raise
            raise SparkLost(
                f"the Spark Connect server {url} was lost as a session began: {_first_line(error)}"
            ) from error
        self._stopped.set()  # an earlier session is lost
        self._stopped = threading.Event()
        keep = threading.Thread(target=_kept, args=(session, self._stopped), name="logio-spark-kept", daemon=True)
        keep.start()
        return session

    def _furnish(self, session: Any, url: str) -> None:
        session.interruptAll()  # jobs of the last epoch, if this session was lost on the way only
        for name, value in self._target.conf.items():
            self._set(session, name, value, url)
        if self._target.py_files:
            session.addArtifacts(*self._target.py_files, pyfile=True)

    def _answering(self) -> tuple[Any, str]:
        """A session that has answered, and where it is."""
        begun = time.monotonic()
        while True:
            address = self._server = self._address(self._has_ended)
            self._is_known.set()
            self._has_ended = False
            session = self._opened(address, self._name, self._plans)
            try:
                session.conf.get(_APPLICATION)
                return session, address.url
            except Exception as error:
                _check_answer(error, address)
                self._check_patience(error, address, time.monotonic() - begun)
            time.sleep(AGAIN_SECONDS)

    def _check_patience(self, error: Exception, address: ServerAddress, seconds: float) -> None:
        """Raises for a server that has not answered for so long, where it is not to be asked again.

        One that the drivers have started is lost: they start another one. It is not a system that a person starts.
        """
        said = _first_line(error)
        if address.is_there is not None:
            if not address.is_there():
                raise SparkLost(f"the Spark Connect server {address.url} has ended: {said}") from error
            if seconds >= SILENT_SECONDS:
                self._has_ended = True  # to be replaced
                raise SparkLost(
                    f"the Spark Connect server {address.url} has not answered for {seconds:.0f} s: {said}"
                ) from error
        elif seconds >= self.patience:
            raise ExternalUnavailable(
                f"the Spark Connect server {address.url} has not answered for {self.patience:.0f} s: {said}. Start it, or "
                "correct its address; then `logio retry` resumes the group"
            ) from error

    def application(self, session: Any) -> SparkApplication | None:
        """As `SparkEngine`: the server's. It does not say where its UI is."""
        try:
            keeps = str(session.conf.get("spark.eventLog.enabled", "false")).lower() == "true"
            return SparkApplication(str(session.conf.get(_APPLICATION)), None, keeps)
        except Exception as error:
            log.debug("the server does not say what it is: %s", error)
            return None

    def enter(self, session: Any, job_group: str, description: str) -> None:
        """As `SparkEngine`, as a tag. There are no descriptions and no pools: the server's own pool decides."""
        session.clearTags()
        session.addTag(job_group)

    @contextmanager
    def apart(self, session: Any, job_group: str) -> Iterator[None]:
        """As `SparkEngine`."""
        before = session.getTags()
        session.clearTags()
        session.addTag(job_group)
        self._actions[job_group] = []
        try:
            with self._plans.noting(self._actions[job_group]):
                yield
        finally:
            session.clearTags()
            for tag in before:
                session.addTag(tag)

    def cancel(self, session: Any, job_groups: Sequence[str]) -> None:
        """As `SparkEngine`."""
        for group in job_groups:
            session.interruptTag(group)

    def actions(self, job_group: str, session: Any) -> Sequence[str]:
        """As `SparkEngine`. What the server does to find the columns of a DataFrame, `pivot` without values included, is
        no action here."""
        return self._actions.pop(job_group, [])

    def is_lost(self, session: Any, error: BaseException) -> bool:
        """As `SparkEngine`: the server, or this session of it."""
        if isinstance(error, ConnectionError | EOFError):
            return True
        if any(said in str(error) for said in _STOPPED):
            self._has_ended = True
            return True
        return not _answers(session)

    def may_return(self) -> bool:
        """As `SparkEngine`: a server is started again."""
        return True

    def end_earlier(self) -> None:
        """As `SparkEngine`: close the sessions of the last incarnations, with the jobs that run in them. Waits until there is
        a server for a session of this one: it starts none for theirs."""
        incarnation = self._name.incarnation
        self._is_known.wait()
        assert self._server is not None
        for last, is_standby in itertools.product(range(max(1, incarnation - EARLIER), incarnation), (False, True)):
            earlier = SessionName(self._name.run_uid, self._name.group, last, is_standby)
            try:
                session = self._opened(self._server, earlier, None)
                session.conf.get(_APPLICATION)  # a server remembers the end of those only that it had
                session.stop()
            except Exception as error:
                log.debug("a session of incarnation %d is not closed: %s", last, error)

    def stop(self, session: Any) -> None:
        """As `SparkEngine`. A server that does not answer closes the session when it has not heard of it for an hour."""
        self._stopped.set()
        with suppress(Exception):
            session.stop()

    def _opened(self, address: ServerAddress, name: SessionName, plans: Any) -> Any:
        """The client of a session; nothing is sent yet."""
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        from airflow_logio.spark import connect_channels

        builder = connect_channels.builder(address.url)
        builder.set("session_id", name.number())
        if builder.userId is None:
            builder.set("user_id", self._target.user)
        if address.token is not None:
            builder.set("token", address.token)
        if plans is not None:
            builder.add_interceptor(plans)
        if address.is_there is not None:
            builder.add_interceptor(connect_channels.OnlyToServer(address.is_there))
        session = SparkSession.builder.channelBuilder(builder).create() if plans else SparkSession(builder)
        session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
        return session

    def _set(self, session: Any, name: str, value: str, url: str) -> None:
        try:
            session.conf.set(name, value)
        except Exception as error:
            if self.is_lost(session, error):
                raise
            if name in self._target.ours:
                log.debug("the server does not take %s: %s", name, error)
                return
            raise ConfigurationError(
                f"the Spark Connect server {url} does not take {name}={value} for a session: "
                f"{_first_line(error)}. Set it where the server is started, or leave it out"
            ) from error


def _kept(session: Any, stopped: threading.Event) -> None:
    while not stopped.wait(KEPT_SECONDS):
        with suppress(Exception):  # a job that needs the server finds out
            session.conf.get(_APPLICATION)


def _answers(session: Any) -> bool:
    """Whether the server answers within `ANSWER_SECONDS`; the thread that waits longer is left to itself."""
    answered = threading.Event()

    def ask() -> None:
        try:
            session.conf.get(_APPLICATION)
            answered.set()
        except Exception as silence:
            log.debug("the server does not answer: %s", silence)

    asking = threading.Thread(target=ask, name="logio-spark-asked", daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    return answered.is_set()


def _check_answer(error: Exception, address: ServerAddress) -> None:
    """Raises for an answer that will be the same again."""
    said = str(error)
    if _CLOSED in said:
        raise SparkLost("the next driver of the group has closed this one's Spark session") from error
    if any(word in said for word in _REFUSED):
        elsewhere = (
            "Its token is the password of the Airflow connection, or SPARK_CONNECT_AUTHENTICATE_TOKEN where `logio` is "
            "run"
        )
        own = "It was started with a token, and has another one: leave spark.connect.authenticate.token out of Spark's files"
        raise ConfigurationError(
            f"the Spark Connect server {address.url} refuses this client: {_first_line(error)}. "
            f"{elsewhere if address.is_there is None else own}"
        ) from error


def _first_line(error: BaseException) -> str:
    """What the server says, or gRPC of it."""
    text = str(error).strip()
    details = _DETAILS.search(text)
    return details[1] if details else text.partition("\n")[0]
