"""Writers: operators whose every input event is one write action (Algorithm 5), by what the external system can do.

A write action is logged with the Output Set, executed after that commit, and replayed until it has succeeded; after a
crash the pending ones are executed by the next driver (Algorithm 8). What that makes exact depends on the system:

- `ConditionalWriter`: the system applies actions and their marker in one step. Exactly once, whatever happens, even
  when a replaced driver wakes up later and keeps writing (a zombie): the marker refuses it.
- `IdempotentWriter`: repeating an action changes nothing. Exact if drivers only stop (crash-stop), or if the actions
  commute, for instance because each has a place of its own. Otherwise a zombie may bring an older value back for a
  while.
- `CheckableWriter`: the system can be asked whether it has applied an action. Exactly once if drivers only stop. A
  question followed by a write is not conditional: a zombie and its successor can both ask, both hear no, and both write.

Choose the first one that the external system allows. `TableWriter` (SQL tables) is conditional, `ParquetWriter`
(folders of files) idempotent with commuting actions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.dependencies import UNCHANGED
from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.operators import External, InputEvent, PortTable, WriterOperator
from airflow_logio.dataflow.unavailability import check_errors
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.external_rules import MarkerRow, group_to_apply, to_apply
from airflow_logio.protocol.record_rules import RecordRules
from airflow_logio.protocol.writes import HeldGroup

BEGIN, INSERT = "begin", "insert"
"""What the description of a write action says under ``action``: the one a run begins with, or records to write."""

EVENT = "event"
"""Under which it says the id of the event, where the writer needs it and the records are a dataset."""


@dataclass(frozen=True, slots=True)
class WriteAction:
    """One write action, read back from the log: every execution of it, by whichever driver, gets the same values.

    Writers get it; only `token` differs between drivers.

    :param run_uid: the run; unique over all runs and all logs.
    :param operator: name of the writer in its pipeline.
    :param connection: name of the connection that is written to.
    :param number: counts from 1, without a gap, per run, operator, connection and slot.
    :param token: fencing token of the driver that executes the action; it rises with every recovery.
    :param records: what is to be written.
    :param description: what else the action says, JSON-able.
    :param slot: the slot of the key space, where the operator is replicated; else 0.
    :param dataset: where the manifest of its records is, in the payload store, if they are a dataset; then it has no
        `records`.
    :param first_row: the number of its first one of `records`, where these are only a part of a dataset.
    """

    run_uid: str
    operator: str
    connection: str
    number: int
    token: int
    records: pa.Table = field(repr=False, compare=False)
    description: Mapping[str, Any] = field(default_factory=dict)
    slot: int = 0
    dataset: str | None = None
    first_row: int = 0

    @property
    def key(self) -> str:
        """Names this action and no other, for ever: an idempotency key."""
        return f"{self.run_uid}/{self.operator}/{self.connection}/{self.slot}/{self.number}"

    @property
    def is_opening(self) -> bool:
        """It has no records: it is the action that a run begins with (`ActionWriter.opening`)."""
        return self.description.get("action") == BEGIN


@dataclass(frozen=True, slots=True)
class Marker:
    """The high-water row of a writer in its external system, by which a replaced driver is refused. Writers get it.

    The external system keeps, under `key`, the number of the last action applied and the token it was applied with, and
    changes them in the same atomic step as it applies actions.

    :param run_uid: the run that owns the row.
    :param operator: name of the writer in its pipeline.
    :param connection: name of the connection that is written to.
    :param slot: the slot of the key space, where the operator is replicated; else 0.
    :param token: fencing token of the driver that advances the row.
    :param started_at: when the run was started, seconds since 1970 by the clock of its log.
    :param line: the uid of the run's log, its pipeline, and its number among the runs of that; None if it is not known.
    :param look: sees the row before anything is applied by it. It may raise, to refuse, or where nothing is to be
        applied yet.
    """

    run_uid: str
    operator: str
    connection: str
    slot: int
    token: int
    started_at: float
    look: Callable[[MarkerRow], None] | None = field(default=None, repr=False, compare=False)
    line: tuple[str, str, int] | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """Names the row."""
        return f"{self.run_uid}/{self.operator}/{self.connection}/{self.slot}"

    def unapplied(self, actions: Sequence[WriteAction], number: int = 0, token: int = 0) -> Sequence[WriteAction]:
        """Which of the actions are still to be applied. Ask inside the step that then applies them, with the row
        locked.

        :param actions: the actions that are to be executed.
        :param number: the number in the row; 0: there is none yet.
        :param token: the token in the row; 0: there is none yet.

        Afterwards the row holds the number of the last action and `self.token`. Raises `Fenced` if a higher token wrote
        (this driver was replaced), and `LogInconsistent` if the row is behind the log, or ahead of it (one of them was
        restored from an older copy). What else it raises must leave the step, too, with nothing applied: a driver looks
        at the row before its first group of actions (ADR-88).
        """
        row = MarkerRow(number, token)
        if self.look is not None:
            self.look(row)
        return to_apply(self.operator, self.connection, self.token, actions, row)

    def applies(self, held: HeldGroup, number: int = 0, token: int = 0) -> bool:
        """As `unapplied`, for write actions that are applied with the closing one: whether all of them are still to be
        applied. If not, none is.

        Afterwards the row holds `held.last` and `self.token`. Raises as `unapplied`.
        """
        row = MarkerRow(number, token)
        if self.look is not None:
            self.look(row)
        return group_to_apply(self.operator, self.connection, self.token, held, row)


Client = TypeVar("Client")
"""Whatever `connect` gives: a session, a database connection, a file system."""


class ActionWriter(WriterOperator):
    """Base of all writers: an event comes in, its records become a write action, the event is sent on unchanged.

    Actions of one writer are executed one after the other in the order of their numbers, on a thread of their own; of
    all writers of a group that name the same connection, one at a time.

    :param connection: name of the connection that is written to.

    Raises PipelineDefinitionError.
    """

    replay_seconds: float | None = None
    """How long actions are replayed while the external system is unavailable; None: as the run says. Then the group is
    parked; nothing is lost, and ``logio retry`` resumes with the same actions."""
    closes: bool = False
    """Its write actions wait in the log until all of them are there. Then they are applied as one, with a closing one. Such
    a writer has no output port."""
    actions_at_once: int = 64
    """How many actions are executed as one group at most. Between two groups the log learns what is done, and a driver
    that is to halt does so."""

    def __init__(self, connection: str) -> None:
        self.connection = check_name("connection", connection)

    def records(self, event: InputEvent) -> pa.Table | None:
        """What is written of an event: by default its records as they are. None: no write action for this event.

        :param event: the input event.
        """
        return event.table

    def opening(self) -> Mapping[str, Any] | None:
        """JSON-able description of a write action, without records, that a run begins with, once; None (the default)
        for none.
        """
        return None

    def opening_of_empty(self, schema: pa.Schema) -> Mapping[str, Any] | None:
        """As `opening`, where the source right before the writer has no records.

        :param schema: what they would have.
        """
        return self.opening()

    def closing(self) -> Mapping[str, Any]:
        """JSON-able description of the closing write action, for a writer that `closes`; what it says under ``action`` is
        set.
        """
        return {}

    def record_rules(self) -> RecordRules:
        """A class with a `process` of its own says with `depends` what is known of it, or nothing."""
        rules = super().record_rules()
        if self.depends is not None or type(self).process is not ActionWriter.process:
            return rules
        return replace(rules, outputs=dict.fromkeys(self.outputs, UNCHANGED))

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        """At most one write action; the event is sent to ``out`` unchanged."""
        records = self.records(event)
        if records is not None:
            external.write(self.connection, records)
        if not self.closes:
            yield "out", event.table


class ClientWriter(ActionWriter, Generic[Client]):
    """A writer of an external system that your own code reaches. Derive from one of the three classes below.

    :param connection: name of the connection that is written to.

    ExternalUnavailable, ConnectionError, TimeoutError and their like in urllib, requests and httpx
    (`unavailability.is_outage`), and the errors that `unavailable` names, say that the external system is unavailable.
    The client is then closed, and the group of actions is replayed with a new one, with back-off. Any other error ends
    the driver, naming operator, connection and write actions; after the next recovery they are tried again, until the
    recovery budget is spent and the group parked.
    """

    unavailable: tuple[type[Exception], ...] = ()
    """More errors of the author's libraries that mean the same as `ExternalUnavailable`."""

    def __init__(self, connection: str) -> None:
        super().__init__(connection)
        check_errors(f"the writer {type(self).__name__!r}", self.unavailable)

    @abstractmethod
    def connect(self, url: str) -> AbstractContextManager[Client]:
        """A client of the external system, as a context manager; closed at the end, or after an error.

        :param url: the URL of this writer's connection, credentials included.

        Called on the writer's thread, when the first action is to be executed. A generator function decorated with
        ``contextlib.contextmanager`` will do. For what has a ``close`` method, use ``contextlib.closing``.
        """


class ConditionalWriter(ClientWriter[Client]):
    """A writer whose external system applies actions and advances a marker in one atomic step. Exactly once, whatever
    happens, even when a replaced driver keeps writing.

    Implement `connect` and `apply`. Choose this class where the external system has transactions or conditional
    updates.

    :param connection: name of the connection that is written to.
    """

    write_guarantee = "conditional"
    actions_at_once = 4_096

    @abstractmethod
    def apply(self, client: Client, marker: Marker, actions: Sequence[WriteAction]) -> None:
        """In one atomic step: read the row `marker.key`, apply what it has not seen, and store the new row.

        ::

            with client.transaction():
                number, token = client.lock(marker.key) or (0, 0)
                for action in marker.unapplied(actions, number, token):
                    client.insert(action.records)
                client.store(marker.key, actions[-1].number, marker.token)

        :param client: what `connect` has given.
        :param marker: the row of this writer, and which actions it still lets through.
        :param actions: they come in order, without a gap; some of them, or all, may have been applied by an earlier
            driver.
        """


class CheckableWriter(ClientWriter[Client]):
    """A writer whose external system can be asked whether an action was applied: by its `WriteAction.key`, stored with
    the data. Exactly once if drivers only stop; a replaced driver that wakes up may write an action a second time.

    Implement `connect`, `is_applied` and `write`. `unapplied` and `write_group` may be overridden where one request
    does for many.

    The question is asked for every pending action after a recovery and after a failed attempt (Algorithm 8 Step 2.a),
    and not when an action is executed for the first time by the driver that logged it.

    :param connection: name of the connection that is written to.
    """

    write_guarantee = "checkable"

    @abstractmethod
    def is_applied(self, client: Client, action: WriteAction) -> bool:
        """Whether the external system has applied the action, even if its acknowledgement was lost.

        :param client: what `connect` has given.
        :param action: the action.
        """

    @abstractmethod
    def write(self, client: Client, action: WriteAction) -> None:
        """Apply one action, wholly or not at all, in such a way that `is_applied` finds it; return when it is durable.

        :param client: what `connect` has given.
        :param action: the action.
        """

    def unapplied(self, client: Client, actions: Sequence[WriteAction]) -> Sequence[WriteAction]:
        """Those of the actions that were not applied. Override it where one question does for many.

        :param client: what `connect` has given.
        :param actions: the actions, in order.
        """
        return [action for action in actions if not self._is_applied(client, action)]

    def write_group(self, client: Client, actions: Sequence[WriteAction]) -> None:
        """Apply a group of actions in order. Override it where one request does for many; it may fail half-way.

        :param client: what `connect` has given.
        :param actions: the actions, in order.
        """
        _one_by_one(self.write, client, actions)

    def _is_applied(self, client: Client, action: WriteAction) -> bool:
        answer = self.is_applied(client, action)
        if not isinstance(answer, bool):  # a forgotten `return` would otherwise mean "write it again"
            raise OperatorFailed(f"is_applied must answer True or False, it answered {answer!r} for {action.key}")
        return answer


class IdempotentWriter(ClientWriter[Client]):
    """A writer whose actions leave the external system the same when they are executed again, in the same order. Exact
    if drivers only stop, or if the actions commute.

    That is true of blind writes: put a file, upsert rows by their keys, set a value, send a request with an idempotency
    key. It is not true of an action that depends on what it finds, such as "rename a to b" before "create a".

    Implement `connect` and `write`. `write_group` may be overridden where one request does for many.

    :param connection: name of the connection that is written to.
    """

    write_guarantee = "idempotent"

    @abstractmethod
    def write(self, client: Client, action: WriteAction) -> None:
        """Apply one action; return when it is durable. `WriteAction.key` serves systems that take an idempotency key.

        :param client: what `connect` has given.
        :param action: the action.

        After a failure all actions that the log does not know to be done are executed again, in order.
        """

    def write_group(self, client: Client, actions: Sequence[WriteAction]) -> None:
        """Apply a group of actions in order. Override it where one request does for many; it may fail half-way.

        :param client: what `connect` has given.
        :param actions: the actions, in order.
        """
        _one_by_one(self.write, client, actions)


def _one_by_one(write: Any, client: Any, actions: Sequence[WriteAction]) -> None:
    """Execute the actions of a group, a crash point between each two."""
    for place, action in enumerate(actions):
        if place:
            crash_here(CrashPoint.IN_EXTERNAL_WRITE)
        write(client, action)


GUARANTEES: Mapping[str, Any] = {
    "conditional": ConditionalWriter,
    "checkable": CheckableWriter,
    "idempotent": IdempotentWriter,
}
"""Guarantee → the class that an author derives a writer of it from."""
