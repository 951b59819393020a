"""What one simulated incarnation of a group is, and what it could do next: state, possible steps, where it would die."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.records import Claim, FenceRow
from airflow_logio.testing.simulator.driver.threads import At, Committer, Job, Source, Writer
from airflow_logio.testing.simulator.log_port import Session
from airflow_logio.testing.simulator.plan import GroupPlan
from airflow_logio.testing.simulator.sites import Site

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.world import World

Option = tuple[str, object]
"""A verb and what it is about: a port, an operator, a writer."""


class Phase(Enum):
    CLAIMED = auto()
    REGISTERED = auto()
    OPENED = auto()
    """The fence is read."""
    READ = auto()
    """The log is read."""
    ASKED = auto()
    """A replica knows its slots."""
    WAITING = auto()
    """A replica without slots, warm."""
    RUNNING = auto()
    STOPPING = auto()
    """Its epoch is void: threads end what they are doing, then it rebuilds itself."""
    FINISHED = auto()
    GONE = auto()
    """Killed, or ended because it was replaced."""


class Incarnation:
    """`number` counts the incarnations of the group; `fence` is what this driver believes of its fence row."""

    def __init__(self, world: World, plan: GroupPlan, claim: Claim) -> None:
        self.world = world
        self.plan = plan
        self.claim = claim
        self.number = claim.incarnation
        self.phase = Phase.CLAIMED
        self.is_alive = True
        self.why_gone = ""
        self.session: Session
        self.fence: FenceRow
        self.slots: Mapping[int, int] | None = None
        """Of a replica: the slots that it believes to own, with their moves."""
        self.operators = plan.operators
        """What it runs: of a replica, the operators of its slots."""
        self.protocol: GroupProtocol
        self.recovered: Recovered
        self.committer = Committer()
        self.writers: dict[tuple[str, str], Writer] = {}
        self.sources: dict[str, Source] = {}
        self.jobs: dict[str, Job | None] = {}
        self.cursors: dict[Port, int] = {}
        self.inbox: dict[Port, deque[Event]] = {}
        self.delivered: dict[Port, Event] = {}
        self.drops: list[tuple[str, int, str]] = []
        """(source, action, reference): stored effects to discard."""
        self.dropped: set[tuple[str, int]] = set()
        """(source, action) of those that are discarded, which no commit has said yet."""
        self.step_open = False
        self.fresh = False
        """Rebuilt, and the step that begins this epoch is not committed yet."""
        self.raises_epoch = False
        self.finishing = False
        self.heard = False
        """It knows that its group is to drain."""
        self.draining = False
        """Its sources have ended for that reason, in this epoch."""
        self.drained = False
        """The log says so."""
        self.beats = 0
        self.ready = False
        """Its heartbeat says that it works, or that it waits for slots."""
        self.epochs = 0

    # --- what is possible now -----------------------------------------------------------------------------------------

    @property
    def is_replaced(self) -> bool:
        return self.world.incarnations[self.plan.name] != self.number

    def end(self, why: str) -> None:
        """Whatever it was doing, it does nothing any more."""
        self.phase, self.is_alive, self.why_gone = Phase.GONE, False, why

    def options(self) -> list[Option]:
        """Steps that would change something, in the order in which an undisturbed driver takes them."""
        phase = self.phase
        if phase is Phase.RUNNING:
            out = self._running()
            if self.world.wished and not self.draining:
                self._wishes(out)
            return out if self.ready or not self.plan.replica_of else [("beat", None), *out]
        if phase is Phase.WAITING and not self.ready:
            return [("beat", None), ("check", None)]
        if phase is Phase.STOPPING:
            return [*self._transaction(), *self._acting(), ("join", None)]
        if phase is Phase.OPENED and self.plan.replica_of:
            return [("ask", None)]
        return [(_START[phase], None)] if phase in _START else []

    def _running(self) -> list[Option]:
        out = self._transaction()
        acting = not self.is_replaced or not self.world.scenario.crash_stop
        for key, writer in self.writers.items():
            if writer.at is At.TAKEN or writer.at is At.UNKNOWN:
                if acting:
                    out.append(("apply", key))
            elif writer.at is At.DONE:
                out.append(("note_writes", key))
            elif writer.pending:
                out.append(("take_writes", key))
        self._inputs(out)
        if self.jobs:
            self._generating(out)
        if self.step_open:
            out.append(("close", None))
        elif not out and self._is_finished():
            out.append(("finish", None))
        elif not out and (self.plan.replica_of or self.world.scenario.retries):
            out.append(("check", None))
        return out

    def _wishes(self, out: list[Option]) -> None:
        """Before anything else, in a driver that nobody disturbs; it hears a wish with its next heartbeat."""
        if self.heard:
            if not self.finishing:
                out.insert(0, ("drain", None))
        elif self.plan.name in self.world.wished and not self.is_replaced:
            out.insert(0, ("beat", None))

    def _transaction(self) -> list[Option]:
        committer = self.committer
        if committer.at is At.IDLE:
            return [("take", None)] if committer.queue and self.phase is Phase.RUNNING else []
        if committer.at is At.TAKEN:
            return [("commit", None)]
        if committer.at is At.UNKNOWN:
            return [] if self.world.is_in_doubt(self) else [("resolve", None)]
        return [("hand_over", None)]

    def _acting(self) -> list[Option]:
        """What is on its way to external systems when the group stops."""
        if self.is_replaced and self.world.scenario.crash_stop:
            return []
        return [("apply", key) for key, writer in self.writers.items() if writer.at in (At.TAKEN, At.UNKNOWN)]

    def _inputs(self, out: list[Option]) -> None:
        known = self.world.known
        for port, cursor in self.cursors.items():
            if known.get(port, 0) > cursor:
                out.append(("fetch", port))
        for port, events in self.inbox.items():
            if events and self._has_its_turn(port):
                out.append(("deliver", port))
        if self.sources or self.drops:
            self._reading(out)

    def _reading(self, out: list[Option]) -> None:
        for name, source in self.sources.items():
            if source.obtained is not None:
                out.append(("note_effect", name))
            elif source.inbox:
                out.append(("emit", name))
            elif source.exhausted:
                out.append(("end_source", name))
            if not source.exhausted and source.obtained is None:
                out.append(("read", name))
        for drop in self.drops:
            out.append(("discard", drop))

    def _has_its_turn(self, port: Port) -> bool:
        operator = self.protocol.operators[port.operator]
        return operator.order is None or operator.next_port() == port.name

    def _generating(self, out: list[Option]) -> None:
        for name, job in self.jobs.items():
            if job is None:
                if self.protocol.operators[name].next_triggered():
                    out.append(("start_job", name))
            else:
                out.append(("run_job" if job.results is None else "note_job", name))

    def _is_finished(self) -> bool:
        return (
            not self.finishing
            and self.committer.is_idle()
            and self.protocol.is_finished()
            and all(writer.outstanding == 0 for writer in self.writers.values())
        )

    def sites(self) -> list[Site]:
        """Where it would die now, thread by thread."""
        if self.phase in _SITES:
            return [_SITES[self.phase]]
        found = []
        committer = self.committer
        if committer.at is not At.IDLE:
            in_doubt = committer.at is At.UNKNOWN and self.world.is_in_doubt(self)
            found.append(Site.IN_DOUBT if in_doubt else _COMMIT_SITES[committer.at])
            if self.finishing:
                found.append(Site.AFTER_FINISH if committer.at is At.DONE else Site.BEFORE_FINISH)
        if self.heard:
            found.append(Site.AFTER_DRAIN if self.drained else Site.BEFORE_DRAIN)
        if self.fresh:
            found.append(Site.AFTER_RECOVERY)
        if committer.queue:
            found.append(Site.STEP_QUEUED)
        if self.step_open:
            found.append(Site.IN_STEP)
        found += [_WRITE_SITES[writer.at] for writer in self.writers.values() if writer.at is not At.IDLE]
        found += [self._reading_site(name, source) for name, source in self.sources.items()]
        found += [Site.BEFORE_DROP for _ in self.drops] + [Site.AFTER_DROP for _ in self.dropped]
        found += [Site.BEFORE_JOB if job.results is None else Site.AFTER_JOB for job in self.jobs.values() if job]
        return found or [Site.IDLE]

    def _reading_site(self, name: str, source: Source) -> Site:
        if source.obtained is not None:
            return Site.AFTER_STORE
        if source.stored is None and not self.protocol.source(name).spec.replayable:
            return Site.BEFORE_STORE
        return Site.AFTER_READ if source.inbox else Site.BEFORE_READ

    def _may_read_back(self) -> bool:
        """The fence row's lock is free."""
        return not self.world.is_locked(self.plan.name)


_START = {
    Phase.CLAIMED: "register",
    Phase.REGISTERED: "open",
    Phase.OPENED: "recover",
    Phase.ASKED: "recover",
    Phase.WAITING: "check",
    Phase.READ: "rebuild",
}
_SITES = {
    Phase.CLAIMED: Site.BEFORE_REGISTER,
    Phase.REGISTERED: Site.AFTER_REGISTER,
    Phase.OPENED: Site.BEFORE_RECOVERY,
    Phase.ASKED: Site.BEFORE_RECOVERY,
    Phase.WAITING: Site.IDLE,
    Phase.READ: Site.IN_RECOVERY,
    Phase.STOPPING: Site.EPOCH_VOID,
}
_COMMIT_SITES = {At.TAKEN: Site.BEFORE_COMMIT, At.UNKNOWN: Site.COMMIT_UNKNOWN, At.DONE: Site.AFTER_COMMIT}
_WRITE_SITES = {At.TAKEN: Site.BEFORE_WRITE, At.UNKNOWN: Site.WRITE_UNKNOWN, At.DONE: Site.AFTER_WRITE}
