"""Replay of operators (Section 5): the bodies that are not in the log are made again, by the group that needs them.

The paper's Algorithms 10 and 11 take a replay operator back to an earlier state and let it run from there. Here the log has
the Input Set of every event that is not done, with all that it is made of. So an Output Set is a function of rows that no
longer change: whoever needs it evaluates that function, and changes nothing (ADR-106).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from msgspec.structs import replace

from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.logic import Emit, Logic
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import Event, MadeOf

SETS_AT_ONCE = 64
BYTES_AT_ONCE = 8 * 2**20
"""How much is read at once of what events are made of; one Input Set, if that is larger."""


def offers_nothing(_event: Event) -> Any | None:
    """No sender hands anything over directly."""
    return None


class Replay:
    """Gives events of the log their payloads, wherever these are. For one thread at a time.

    `logic_of` gives the logic of a replay operator: one that no protocol uses at the same time. `input_sets` reads what
    Input Sets of an operator are made of, each in the order of event_id: of those named, the first ones that fit into so many
    bytes, at least one; others may be missing. `unpack` loads a body that is in the log or the payload
    store, `digest` is that of a payload's contents. `offered` is what a sender has handed over directly, if anything: it may
    be lost, late, or of another event, because it counts only with the digest that is in the log.

    In memory are the last Output Set of each replay operator on the way, and the Input Sets of one question.
    """

    def __init__(
        self,
        logic_of: Callable[[str], Logic],
        input_sets: Callable[[str, Sequence[str], int], Mapping[str, Sequence[LoggedEvent]]],
        unpack: Callable[[Event], Event],
        digest: Callable[[Any], bytes],
        offered: Callable[[Event], Any | None] = offers_nothing,
    ) -> None:
        self._logic_of = logic_of
        self._input_sets = input_sets
        self._unpack = unpack
        self._digest = digest
        self._offered = offered
        self._last: dict[str, tuple[str, Sequence[Emit]]] = {}
        """Operator → the Input Set that was evaluated last, and its Output Set: what is asked for next is mostly in it."""
        self._coming: dict[str, dict[str, None]] = {}
        """Operator → Input Sets that will be asked for, or that would have been: a hint, in order."""
        self._read: dict[str, dict[str, Sequence[LoggedEvent]]] = {}
        """Operator → Input Sets that have been read and not asked for."""

    def expect(self, events: Iterable[Event]) -> None:
        """These events will be asked for, in this order: what they are made of is then read together."""
        for event in events:
            if event.made_of is not None:
                self._coming.setdefault(event.sender.operator, {})[event.made_of.inset_id] = None

    def unpacked(self, event: Event) -> Event:
        """The event with its payload. Raises what `input_sets` and `unpack` raise, what the author's code raises, and
        `OperatorFailed` if what is made again is not what the log says was made."""
        made_of = event.made_of
        if made_of is None:
            return self._unpack(event)
        payload = self._offered(event)
        if payload is None or self._digest(payload) != made_of.digest:
            payload = self._made_again(event, made_of)
        return replace(event, payload=payload, body=None)

    def _made_again(self, event: Event, made_of: MadeOf) -> Any:
        outputs = self._output_set(event.sender.operator, made_of.inset_id)
        of_port = [emit for emit in outputs if emit.port == event.sender.name]
        if made_of.place >= len(of_port):
            raise self._differs(event, made_of, f"has {len(of_port)} events on this port")
        made = of_port[made_of.place]
        if self._digest(made.payload) != made_of.digest:
            raise self._differs(event, made_of, f"has other contents ({made.records} records, logged: {event.records})")
        return made.payload

    def _output_set(self, operator: str, inset_id: str) -> Sequence[Emit]:
        known, outputs = self._last.get(operator, ("", ()))
        if known != inset_id:
            logic = self._logic_of(operator)
            held: Any = None
            for used in self._input_set(operator, inset_id):
                event = self.unpacked(used.event)
                held = logic.accumulate(held, logic.part(used.receiver.name, event, inset_id))
            generated = logic.generate(inset_id, held, logic.initial_state())
            outputs = [output for output in generated if isinstance(output, Emit)]
            self._last[operator] = inset_id, outputs
        return outputs

    def _input_set(self, operator: str, inset_id: str) -> Sequence[LoggedEvent]:
        found = self._read.get(operator, {}).pop(inset_id, None)
        if found is None:
            coming = self._coming.get(operator, {})
            coming.pop(inset_id, None)
            batch = dict(self._input_sets(operator, [inset_id, *islice(coming, SETS_AT_ONCE - 1)], BYTES_AT_ONCE))
            found = batch.pop(inset_id)
            self._read[operator] = batch
            for other in batch:
                del coming[other]
            self.expect(used.event for used in chain(found, *batch.values()))
        return found

    def _differs(self, event: Event, made_of: MadeOf, how: str) -> OperatorFailed:
        sender = event.sender
        return OperatorFailed(
            f"event {event.event_id} of {sender} was made again from Input Set {made_of.inset_id!r}, and the result {how}. A "
            "replay operator must make the same of the same events: use no clock, no random number, nothing from outside, "
            "and no aggregation in threads without sorting its result. If the code of its group was changed during the run, "
            "give this group the same code; else leave out replay=True",
            FailurePoint(sender.operator, inset_id=made_of.inset_id),
            place=f"replay operator {sender.operator!r}",
        )
