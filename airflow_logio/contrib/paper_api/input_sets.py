"""The Input Sets of a hand-written operator: which events they hold, and which of those rows are in the log.

An id comes from `create`, is stored from then on, and is used once. An event cannot join an Input Set that is triggered
or done, so the ids of done Input Sets need not be remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_logio.contrib.paper_api.infos import EventInfo
from airflow_logio.contrib.paper_api.stored import Remembered
from airflow_logio.errors import ApiMisuse
from airflow_logio.protocol.context import Context
from airflow_logio.protocol.logic import InputSetState, OperatorSpec

Member = tuple[str, int]
"""(input port, event_id)"""


class InputSets:
    """`held` of each `InputSetState` is its set of members."""

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
