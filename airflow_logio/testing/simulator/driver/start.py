"""How a simulated driver starts, recovers and rebuilds itself: fence, log, memory, each a step of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.records import DriverIdentity
from airflow_logio.testing.simulator.driver.commits import Committing
from airflow_logio.testing.simulator.driver.driver_state import Phase
from airflow_logio.testing.simulator.driver.threads import Committer, Source

if TYPE_CHECKING:
    pass


class Starting(Committing):
    """Algorithms 6 to 9, in the order of `runtime/driver/epoch.py`."""

    # --- start and recovery: fence, log, memory -----------------------------------------------------------------------

    def _register(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.CLAIMED:
            return False
        identity = DriverIdentity("simulated", "boot", self.number, float(self.number))
        self.session = self.world.store.session(self.world.store.register(self.claim, identity))
        self.phase = Phase.REGISTERED
        self._hear_wish()
        return True

    def _hear_wish(self) -> None:
        """Before anything is read: a driver that recovers a draining group reads nothing further."""
        if self.plan.name in self.world.wished:
            status = self.world.store.group(self.claim.run_id, self.plan.name)
            self.heard = status.desired is GroupState.DRAINING

    def _open(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.REGISTERED or self.world.is_locked(self.plan.name):
            return False
        self.fence = self.session.open(raise_epoch=self.raises_epoch)
        self.raises_epoch = False
        self.phase = Phase.OPENED
        return True

    def _ask(self, _about: object, _many: int, _outcome: str) -> bool:
        """A replica asks for its slots behind the fence: whoever moves one later voids this epoch."""
        if self.phase is not Phase.OPENED or not self.plan.replica_of:
            return False
        self.slots = self._owned()
        self.operators = tuple(spec for spec in self.plan.operators if slot_of(spec.name) in self.slots)
        self.phase = Phase.ASKED if self.slots else Phase.WAITING
        return True

    def _owned(self) -> Mapping[int, int]:
        return self.session.slots()

    def _recover(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not (Phase.ASKED if self.plan.replica_of else Phase.OPENED):
            return False
        self.recovered = self.session.recover([spec.name for spec in self.operators])
        self.phase = Phase.READ
        return True

    def _rebuild(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.READ:
            return False
        self.epochs += 1
        self.protocol = GroupProtocol(self.operators, self._receivers(), self.plan.lineage_in)
        self.protocol.rebuild(self.recovered, self._unpacked)
        self._start_threads()
        self.protocol.resume()
        self._begin_sources()
        self._submit()
        self.fresh = True
        self.phase = Phase.RUNNING
        return True

    def _receivers(self) -> Mapping[Port, tuple[Port, ...]]:
        if self.slots is None:
            return self.plan.receivers
        mine = {spec.name for spec in self.operators}
        return {sender: ports for sender, ports in self.plan.receivers.items() if sender.operator in mine}

    def _unpacked(self, event: Event) -> Event:
        if event.kind is not Kind.DATA:
            return event
        payload = self.world.scenario.codec.decode(event.body or b"")
        return Event(event.sender, event.event_id, event.kind, event.records, payload, event.body, event.about)

    def _start_threads(self) -> None:
        """New threads for a new epoch: nothing of the old one is left."""
        self.committer = Committer()
        self.writers = {}
        for write in self.recovered.writes:
            self._hand(write)
        operators = self.protocol.operators
        self.jobs = {name: None for name, operator in operators.items() if operator.spec.asynchronous}
        self.cursors = {p: operators[p.operator].context.mark(p.name) for p in self.protocol.inputs_from_log()}
        self.inbox = {port: deque() for port in self.cursors}
        self.delivered = {}
        self.drops = []
        self.dropped = set()
        self.finishing = self.draining = self.drained = False

    def _begin_sources(self) -> None:
        self.sources = {}
        for name, operator in self.protocol.operators.items():
            if not isinstance(operator, SourceProtocol):
                continue
            if operator.action is None and not self.heard:
                self.protocol.begin_source(name, self.world.scenario.sources[name].actions[0])
            self.drops += [(name, action_id, ref) for action_id, ref in operator.to_drop()]
            self._follow(name)

    def _follow(self, name: str) -> None:
        """The reading thread of the read action under way, from where the log says; to drain, only of a stored effect."""
        source = self.protocol.source(name)
        if source.has_ended or (self.heard and source.stored is None):
            self.sources.pop(name, None)
        else:
            self.sources[name] = Source(source.action_id - 1, source.offset, stored=source.stored)

    # --- rebuild in place ---------------------------------------------------------------------------------------------

    def void(self) -> None:
        """Its memory is void (a commit was refused by the epoch, or a thread failed): stop, raise the epoch, rebuild."""
        self.phase = Phase.STOPPING
        self.committer.queue.clear()

    def _void(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.RUNNING or self.finishing:
            return False
        self.void()
        return True

    def _join(self, _about: object, _many: int, _outcome: str) -> bool:
        """Threads are joined: what one of them had not begun never happens."""
        if self.phase is not Phase.STOPPING or self.world.is_in_doubt(self):
            return False
        self.writers = {}
        self.committer = Committer()
        self.raises_epoch = True
        self.phase = Phase.REGISTERED
        return True
