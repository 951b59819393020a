"""Replay of operators (Section 5): the bodies that are not in the log are made again, by the group that needs them.

The paper's Algorithms 10 and 11 take a replay operator back to an earlier state and let it run from there. Here the log has
the Input Set of every event that is not done, with all that it is made of. So an Output Set is a function of rows that no
longer change: any group that needs it evaluates that function, and changes nothing (ADR-106).
"""

from __future__ import annotations

from collections import OrderedDict
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
MADE_BYTES = 64 * 2**20
"""How much is kept of what was made again; one Output Set, if that is larger."""
MOST_HINTS = 10_000
"""Most that are kept of an operator. The oldest are forgotten first."""


class Offers:
    """What senders hand over directly: here nothing.

    It may be lost, late, or of another event: it counts only with the digest that is in the log.
    """

    def expect(self, events: Iterable[Event]) -> None:
        """These events will be asked for, in this order: a hint."""

    def taken(self, event: Event) -> Any | None:
        """The payload of an event, if its sender has handed it over."""
        return None


class Replay:
    """Gives events of the log their payloads, wherever these are. For one thread at a time.

    `logic_of` gives the logic of a replay operator: one that no protocol uses at the same time. `input_sets` reads what
    Input Sets of an operator are made of, each in the order of event_id: of those named, the first ones that fit into so many
    bytes, at least one; others may be missing. `unpack` loads a body that is in the log or the payload
    store, `digest` is that of a payload's contents, `size` gives its bytes. `offers` is what senders hand over directly.

    In memory are the Output Sets that were asked for last, since an event may go into several Input Sets of the next replay
    operator, and what has been read for those that come.
    """

    def __init__(
        self,
        logic_of: Callable[[str], Logic],
        input_sets: Callable[[str, Sequence[str], int], Mapping[str, Sequence[LoggedEvent]]],
        unpack: Callable[[Event], Event],
        digest: Callable[[Any], bytes],
        size: Callable[[Any], int],
        offers: Offers | None = None,
    ) -> None:
        self._logic_of = logic_of
        self._input_sets = input_sets
        self._unpack = unpack
        self._digest = digest
        self._size = size
        self._offers = offers or Offers()
        self._made: OrderedDict[tuple[str, str], tuple[Sequence[Emit], int]] = OrderedDict()
        """(operator, Input Set) → its Output Set with its size; what was asked for last comes last."""
        self._made_bytes = 0
        self._coming: dict[str, dict[str, None]] = {}
        """Operator → Input Sets that will be asked for, or that would have been: a hint, in order."""
        self._read: dict[str, dict[str, Sequence[LoggedEvent]]] = {}
        """Operator → Input Sets that have been read and not asked for."""
        self._at_once: dict[str, int] = {}
        """Operator → of how many Input Sets is asked at once: twice as many as have fitted the last time."""

    def expect(self, events: Iterable[Event]) -> None:
        """These events will be asked for, in this order: what they are made of is then read together."""
        wanted = [(event, event.made_of) for event in events if event.made_of is not None]
        self._offers.expect(event for event, _ in wanted)
        for event, made_of in wanted:
            operator, inset_id = event.sender.operator, made_of.inset_id
            if (operator, inset_id) not in self._made and inset_id not in self._read.get(operator, ()):
                coming = self._coming.setdefault(operator, {})
                coming[inset_id] = None
                if len(coming) > MOST_HINTS:
                    del coming[next(iter(coming))]

    def unpacked(self, event: Event) -> Event:
        """The event with its payload. Raises what `input_sets` and `unpack` raise, what the author's code raises, and
        `OperatorFailed` if what is made again is not what the log says was made."""
        made_of = event.made_of
        if made_of is None:
            return self._unpack(event)
        payload = self._offers.taken(event)
        if payload is None or self._digest(payload) != made_of.digest:
            payload = self._made_again(event, made_of)
        else:
            for hints in (self._coming, self._read):  # what came needs not be read, nor kept
                hints.get(event.sender.operator, {}).pop(made_of.inset_id, None)
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
        key = operator, inset_id
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key][0]
        logic = self._logic_of(operator)
        held: Any = None
        for used in self._input_set(operator, inset_id):
            event = self.unpacked(used.event)
            held = logic.accumulate(held, logic.part(used.receiver.name, event, inset_id))
        generated = logic.generate(inset_id, held, logic.initial_state())
        outputs = [output for output in generated if isinstance(output, Emit)]
        self._keep(key, outputs)
        return outputs

    def _keep(self, key: tuple[str, str], outputs: Sequence[Emit]) -> None:
        size = sum(self._size(output.payload) for output in outputs)
        while self._made and self._made_bytes + size > MADE_BYTES:
            _, (_, freed) = self._made.popitem(last=False)
            self._made_bytes -= freed
        self._made[key] = outputs, size
        self._made_bytes += size

    def _input_set(self, operator: str, inset_id: str) -> Sequence[LoggedEvent]:
        read = self._read.setdefault(operator, {})
        coming = self._coming.setdefault(operator, {})
        coming.pop(inset_id, None)
        if inset_id in read:
            return read.pop(inset_id)
        many = self._at_once.get(operator, SETS_AT_ONCE)
        batch = dict(self._input_sets(operator, [inset_id, *islice(coming, many - 1)], BYTES_AT_ONCE))
        self._at_once[operator] = min(SETS_AT_ONCE, 2 * len(batch))
        found = batch.pop(inset_id)
        for other in batch:
            del coming[other]
        read.update(batch)
        while len(read) > SETS_AT_ONCE:  # hints that have led nowhere
            del read[next(iter(read))]
        self.expect(used.event for used in chain(found, *batch.values()))
        return found

    def _differs(self, event: Event, made_of: MadeOf, how: str) -> OperatorFailed:
        sender = event.sender
        return OperatorFailed(
            f"event {event.event_id} of {sender} was made again from Input Set {made_of.inset_id!r}, and the result {how}. A "
            "replay operator must make the same of the same events: use no clock, no random number, nothing from outside, "
            "and no aggregation in threads without sorting its result. All groups behind it need the same code, the same "
            "versions of libraries and the same kind of processor: if code was changed during the run, see "
            "docs/how-to/operate.md; else leave out replay=True",
            FailurePoint(sender.operator, inset_id=made_of.inset_id),
            place=f"replay operator {sender.operator!r}",
        )
