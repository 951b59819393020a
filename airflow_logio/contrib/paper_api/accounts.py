"""The accounts of a hand-written operator, each with its own rules, and the row of STATE that keeps them.

`Book` commits them. The author's state and the notes of the API are in the STATE row of the operator together with its LOG.io
context, so they commit together. The row is msgpack and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from airflow_logio.contrib.paper_api.infos import ActionInfo, EventInfo, ReadAction, ReadProgress
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import ApiMisuse, LogInconsistent
from airflow_logio.protocol.context import KEPT, Context, decode_state, encode_state, fault, is_plain
from airflow_logio.protocol.logic import InputSetState, OperatorSpec
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.protocol.writes import check_gapless

# --- event ids and numbers of write actions ---------------------------------------------------------------------------


class Ids:
    """Event ids of ports, or numbers of write actions: allocated, staged in a transaction, logged; without a gap.

    `following` maps a port (or connection) to its next id as the LOG.io context stores it, and is kept up to date.
    """

    def __init__(self, what: str, following: dict[str, int]) -> None:
        self._what = what
        self._following = following
        self._allocated: dict[str, int] = {}
        self._staged: dict[str, int] = {}

    def last_logged(self, key: str) -> int:
        return self._following.get(key, FIRST_EVENT_ID) - 1

    def allocate(self, key: str) -> int:
        self._allocated[key] = self._allocated.get(key, self.last_logged(key)) + 1
        return self._allocated[key]

    def stage(self, key: str, event_id: int) -> None:
        """The next id of the port is used by the open transaction. Raises `ApiMisuse` for any other."""
        due = self._staged.get(key, self.last_logged(key)) + 1
        named = f"{self._what} {event_id} of {key!r}"
        if event_id < due:
            raise ApiMisuse(f"{named} is logged already: the next one is {due}, from get_event_id()")
        if event_id > self._allocated.get(key, due - 1):
            raise ApiMisuse(f"{named} has an id that get_event_id() has not given")
        if event_id > due:
            raise ApiMisuse(
                f"{named} would leave a gap: {due} is not logged, and receivers refuse what comes behind a gap"
            )
        self._staged[key] = event_id

    def settle(self) -> None:
        """Everything staged is committed now."""
        for key, event_id in self._staged.items():
            self._following[key] = event_id + 1
        self._staged.clear()

    def discard(self) -> None:
        """Give up the ids that are staged or allocated: they will be allocated again."""
        self._staged.clear()
        self._allocated.clear()


# --- Input Sets -------------------------------------------------------------------------------------------------------

Member = tuple[str, int]
"""(input port, event_id)"""


class InputSets:
    """The Input Sets that are not done: which events they hold, and which of those rows are in the log.

    An id comes from `create`, is stored from then on, and is used once. An event cannot join an Input Set that is triggered
    or done, so the ids of done Input Sets need not be remembered. `held` of each `InputSetState` is its set of members.
    """

    def __init__(self, spec: OperatorSpec, context: Context, remembered: Remembered) -> None:
        self._spec = spec
        self._context = context
        self._remembered = remembered
        self._sets = {inset_id: InputSetState(held=set()) for inset_id in remembered.open_insets}

    def create(self) -> str:
        inset_id = str(self._remembered.next_inset)
        self._remembered.next_inset += 1
        self._remembered.open_insets.append(inset_id)
        self._sets[inset_id] = InputSetState(held=set())
        return inset_id

    def find(self, inset_id: str) -> InputSetState:
        """Raises `ApiMisuse` for an Input Set that was never created, or is done."""
        if inset_id not in self._sets:
            raise ApiMisuse(
                f"operator {self._spec.name!r} has no Input Set {inset_id!r} that is not done; create one: get_inset_id()"
            )
        return self._sets[inset_id]

    def joinable(self, inset_id: str) -> InputSetState:
        """Raises `ApiMisuse` for an Input Set that is triggered or done as well."""
        found = self.find(inset_id)
        if inset_id in self._context.triggered:
            raise ApiMisuse(
                f"Input Set {inset_id!r} of operator {self._spec.name!r} is triggered: no event may join it"
            )
        return found

    def assign(self, inset_id: str, member: Member) -> None:
        state = self._add(inset_id, member)
        state.pending.append(member)

    def reload(self, inset_id: str, member: Member) -> None:
        """A row that is in the log (Algorithm 9 Step 2)."""
        self._add(inset_id, member).logged_rows += 1

    def reload_state(self, inset_id: str) -> None:
        """An undone state event that is in the log."""
        self.find(inset_id).logged_rows += 1

    def _add(self, inset_id: str, member: Member) -> InputSetState:
        state = self.find(inset_id)
        state.held.add(member)
        state.lineage = state.lineage or member[0] in self._spec.lineage_in
        return state

    def check_members(self, inset_id: str, given: Iterable[EventInfo]) -> None:
        """A generation marks done exactly the rows it used (hole H2). Raises `ApiMisuse`."""
        members = self.find(inset_id).held
        used = {(str(info.port), info.event_id) for info in given}
        if used != members:
            raise ApiMisuse(
                f"Input Set {inset_id!r} of operator {self._spec.name!r} holds {len(members)} events in the log, the "
                f"generation used {len(used)}: {_difference(members, used)}. Marking it done would lose or double events"
            )

    def trigger(self, inset_id: str) -> None:
        self.joinable(inset_id)
        self._context.triggered.append(inset_id)

    def close(self, inset_id: str) -> InputSetState:
        self._remembered.open_insets.remove(inset_id)
        if inset_id in self._context.triggered:
            self._context.triggered.remove(inset_id)
        return self._sets.pop(inset_id)

    def with_events(self) -> list[str]:
        """Input Sets that hold events, or are triggered: something is still to be generated."""
        return [name for name, state in self._sets.items() if state.held or name in self._context.triggered]

    def settle(self) -> None:
        """A commit has put every pending row into the log."""
        for state in self._sets.values():
            state.logged_rows += len(state.pending) + state.state_pending
            state.pending.clear()
            state.state_pending = False


def _difference(members: set[Member], used: set[Member]) -> str:
    for what, some in (("not used", members - used), ("not in the log", used - members)):
        if some:
            port, event_id = min(some)
            return f"event {event_id} of port {port!r} is {what}"
    return "they differ"


# --- write actions ----------------------------------------------------------------------------------------------------


class WriteActions:
    """Write actions that are logged but not done: in order per connection, one at a time (Algorithms 5 and 8)."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._undone: dict[str, deque[WriteAction]] = {}

    def logged(self, action: WriteAction) -> None:
        queue = self._undone.setdefault(action.connection, deque())
        check_gapless([*queue, action][-2:])
        queue.append(action)

    def undone(self) -> Sequence[WriteAction]:
        return [action for queue in self._undone.values() for action in queue]

    def check_due(self, connection: str | None, number: int, already: int = 0) -> WriteAction:
        """The undone action of that number, if `already` others before it and no more are undone.

        Raises `ApiMisuse`: an action beyond others must neither be executed nor be marked done before them.
        """
        queue = self._undone.get(str(connection), deque())
        named = f"write action {number} of operator {self._operator!r} on connection {connection!r}"
        if not queue or not queue[0].number <= number <= queue[-1].number:
            raise ApiMisuse(f"{named} is not among the undone ones: it was never committed, or is done")
        due = queue[min(already, len(queue) - 1)]
        if due.number != number:
            raise ApiMisuse(
                f"{named} is not due, {due.number} is: write actions of a connection run in order, each once"
            )
        return due

    def done(self, action: WriteAction) -> None:
        queue = self._undone[action.connection]
        assert queue[0] is action
        queue.popleft()


# --- read actions -----------------------------------------------------------------------------------------------------

_P = ReadProgress
_ALLOWED = {
    _P.INCOMPLETE: (_P.COMPLETE, _P.DONE, _P.ENDED),
    _P.COMPLETE: (_P.DONE,),
    _P.DONE: (_P.ENDED,),
    _P.ENDED: (),
}
"""From an incomplete one to DONE at once: its effect is empty; to ENDED: it is replayable."""


class ReadActions:
    """The read actions of a source, in the order of their start: one at a time (Algorithms 1 and 6)."""

    def __init__(self, operator: str, records: list[ReadRecord]) -> None:
        self._operator = operator
        self._records = records

    def last(self) -> ReadAction | None:
        if not self._records:
            return None
        record = self._records[-1]
        info = ActionInfo(record.action_id, record.connection, record.description, record.replayable)
        return ReadAction(info, record.progress, record.action_data)

    def find(self, action: ActionInfo) -> ReadRecord:
        """Raises `ApiMisuse` for an action that is not on record."""
        for record in self._records:
            if (record.action_id, record.connection) == (action.action_id, action.connection):
                return record
        raise ApiMisuse(
            f"{action} of operator {self._operator!r} is not on record; initialize_read_action() comes first"
        )

    def moved(self, action: ActionInfo, to: ReadProgress, action_data: str | None = None) -> ReadRecord:
        """The record after the move, for `put`. Raises `ApiMisuse` if the action is in another state."""
        record = self.find(action)
        if to not in _ALLOWED[record.progress]:
            raise ApiMisuse(f"{action} of operator {self._operator!r} is {record.progress}: it cannot become {to} now")
        data = record.action_data if action_data is None else action_data
        return ReadRecord(record.action_id, record.connection, record.description, record.replayable, to, data)

    def started(self, action: ActionInfo) -> ReadRecord:
        """A new record, for `put`. Raises `ApiMisuse` while another action is under way, or for a used id."""
        last = self.last()
        if last is not None and last.progress in (_P.INCOMPLETE, _P.COMPLETE):
            raise ApiMisuse(f"{last.info} of operator {self._operator!r} is under way; one read action at a time")
        return ReadRecord(action.action_id, action.connection, dict(action.description), action.replayable)

    def put(self, record: ReadRecord) -> None:
        key = (record.action_id, record.connection)
        for place, known in enumerate(self._records):
            if (known.action_id, known.connection) == key:
                self._records[place] = record
                break
        else:
            self._records.append(record)
        self._records[:-1] = [one for one in self._records[:-1] if one.progress is not _P.ENDED]

    def check_emitting(self) -> None:
        """Raises `ApiMisuse` unless events may be made of the last action (Algorithm 1 Steps 2.c and 3)."""
        last = self.last()
        if last is None:
            raise ApiMisuse(f"source {self._operator!r} logs an event, but has begun no read action")
        ready = _P.INCOMPLETE if last.info.replayable else _P.COMPLETE
        if last.progress is not ready:
            raise ApiMisuse(
                f"source {self._operator!r} logs an event of {last.info}, which is {last.progress}: "
                + (
                    "all its events are logged"
                    if last.progress in (_P.DONE, _P.ENDED)
                    else "store its whole effect first"
                )
            )

    def pending(self) -> list[ReadRecord]:
        return [record for record in self._records if record.progress is not _P.ENDED]


# --- the row of STATE -------------------------------------------------------------------------------------------------


class ReadRecord(msgspec.Struct, frozen=True):
    """A read action on record."""

    action_id: int
    connection: str
    description: dict[str, Any]
    replayable: bool
    progress: ReadProgress = ReadProgress.INCOMPLETE
    action_data: str | None = None


class Remembered(msgspec.Struct):
    """What the API remembers of a hand-written operator."""

    next_inset: int = 1
    open_insets: list[str] = msgspec.field(default_factory=list)
    """Input Sets that were created and are not done, in the order of their creation."""
    reads: list[ReadRecord] = msgspec.field(default_factory=list)
    """The last read action, and those before it whose stored effect is not discarded."""
    last_state_id: int = 0


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def pack(operator: str, state: Mapping[str, Any]) -> bytes:
    """The author's state, serialized now (design D1). Raises `ApiMisuse` if reading it back would give another value."""
    kept, reason = dict(state), None
    if is_plain(kept):
        try:
            return _encoder.encode(kept)
        except (TypeError, ValueError, OverflowError) as error:
            reason = error
    raise ApiMisuse(
        f"the state of operator {operator!r} cannot be stored: {fault(kept) or reason}. {KEPT}; a table goes through "
        "pyarrow's IPC format into bytes"
    ) from reason


def unpack(packed: bytes) -> dict[str, Any]:
    """A state of the author's own to change: equal to what was packed, and of equal types."""
    return cast("dict[str, Any]", msgspec.msgpack.decode(packed))


def state_row(context: Context, remembered: Remembered, packed: bytes | None) -> bytes:
    """The STATE row."""
    state = {"remembered": remembered, "author": None if packed is None else msgspec.Raw(packed)}
    return encode_state(context, state)


def read_state_row(operator: str, data: bytes) -> tuple[Context, Remembered, bytes | None]:
    """Context, memory of the API, packed state of the author; raises `LogInconsistent`."""
    stored = decode_state(operator, data)
    try:
        remembered = msgspec.convert(stored.state["remembered"], Remembered)
        author = stored.state["author"]
    except (KeyError, msgspec.ValidationError) as error:
        raise LogInconsistent(f"the stored state of operator {operator!r} was not written by hand: {error}") from error
    return stored.context, remembered, None if author is None else pack(operator, author)
