"""One simulated incarnation of a group: what `incarnation.py` and `epoch.py` in `runtime/driver/` do, step by step.

Every method named by a verb is one step, which the scheduler may take in any order that the threads of a real driver
could; it returns False, and does nothing, if it is not possible now. The protocol and the store are the real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.testing.simulator.driver.driver_state import Phase
from airflow_logio.testing.simulator.driver.start import Starting
from airflow_logio.testing.simulator.driver.threads import Job
from airflow_logio.testing.simulator.violation import Violation

if TYPE_CHECKING:
    pass


class Driver(Starting):
    """The loop of a group."""

    def perform(self, verb: str, about: object, many: int, outcome: str) -> bool:
        """Take one step. Raises what the step raises."""
        done: bool = getattr(self, _METHODS[verb])(about, many, outcome)
        return done

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _fetch(self, about: object, many: int, outcome: str) -> bool:
        """The channel's thread. Outcome ``again``: its cursor is lost, and it begins at the first unassigned row."""
        port = about
        assert isinstance(port, Port)
        if self.phase is not Phase.RUNNING or port not in self.cursors:
            return False
        after = 0 if outcome == "again" else self.cursors[port]
        events = self.session.fetch(port, after, max_events=many, max_bytes=1 << 30)
        if not events:
            return False
        inbox, unpacked = self.inbox[port], self._unpacked
        for logged in events:
            inbox.append(unpacked(logged.event))
        last = events[-1].event
        if last.kind is Kind.END:
            del self.cursors[port]
        elif last.event_id > self.cursors[port]:
            self.cursors[port] = last.event_id
        return True

    def _deliver(self, about: object, many: int, outcome: str) -> bool:
        """Some events of a port, in order; outcome ``again``: first the last one once more."""
        port = about
        assert isinstance(port, Port)
        waiting = self.inbox.get(port)
        if self.phase is not Phase.RUNNING or not waiting or not self._has_its_turn(port):
            return False
        if outcome == "again" and port in self.delivered and self.protocol.deliver(port, self.delivered[port]):
            raise Violation("an_event_is_used_once", f"{port} used event {self.delivered[port].event_id} twice")
        deliver = self.protocol.deliver
        while waiting and many > 0 and self._has_its_turn(port):
            event = waiting.popleft()
            if deliver(port, event):
                self.delivered[port] = event
                self.step_open = True
            many -= 1
        return True

    def _read(self, about: object, many: int, _outcome: str) -> bool:
        """The source's thread reads on, from outside or from the stored effect of its read action."""
        name = str(about)
        source = self.sources.get(name)
        if self.phase is not Phase.RUNNING or source is None or source.exhausted or source.obtained is not None:
            return False
        if not self.protocol.source(name).spec.replayable and source.stored is None:
            source.obtained = self.world.obtain(self, name, source.action)
            return True
        for _ in range(many):
            batch = self.world.batch(self, name, source)
            if batch is None:
                source.exhausted = True
                break
            source.inbox.append(batch)
            source.offset = batch.next_offset
        return True

    def _note_effect(self, about: object, _many: int, _outcome: str) -> bool:
        name = str(about)
        source = self.sources.get(name)
        if self.phase is not Phase.RUNNING or source is None or source.obtained is None:
            return False
        self.protocol.store_effect(name, *source.obtained)
        source.stored, source.obtained = source.obtained[0], None
        self.step_open = True
        return True

    def _emit(self, about: object, many: int, _outcome: str) -> bool:
        name = str(about)
        source = self.sources.get(name)
        if self.phase is not Phase.RUNNING or source is None or not source.inbox:
            return False
        outputs = self.protocol.source(name).spec.outputs
        for _ in range(min(many, len(source.inbox))):
            batch = source.inbox.popleft()
            emits = (
                [Emit(port, batch.payload, batch.records, None, batch.about) for port in outputs]
                if batch.records
                else []
            )
            self.protocol.emit(name, emits, batch.next_offset)
        self.step_open = True
        return True

    def _end_source(self, about: object, _many: int, _outcome: str) -> bool:
        name = str(about)
        source = self.sources.get(name)
        if self.phase is not Phase.RUNNING or source is None or source.inbox or not source.exhausted:
            return False
        actions = self.world.scenario.sources[name].actions
        follows = source.action + 1 < len(actions) and not self.heard
        self.protocol.end_source(name, actions[source.action + 1] if follows else None)
        self._follow(name)
        self.step_open = True
        return True

    def _drain(self, _about: object, _many: int, _outcome: str) -> bool:
        """Stop reading, once per epoch (design D9). What is read and in no step is not read either."""
        if self.phase is not Phase.RUNNING or not self.heard or self.draining or self.finishing:
            return False
        self.draining = True
        self.protocol.drain()
        for name, operator in self.protocol.operators.items():
            if isinstance(operator, SourceProtocol) and self.protocol.drain_source(name):
                self.sources.pop(name, None)
        self.step_open = True
        return True

    def _discard(self, about: object, _many: int, _outcome: str) -> bool:
        """The stored effect goes, after the commit that logged its last event; then event r."""
        if self.phase is not Phase.RUNNING or about not in self.drops:
            return False
        name, action_id, ref = drop = next(drop for drop in self.drops if drop == about)
        self.drops.remove(drop)
        self.world.effects.pop(ref, None)
        self.protocol.effect_dropped(name, action_id)
        self.dropped.add((name, action_id))
        self.step_open = True
        return True

    def _start_job(self, about: object, many: int, _outcome: str) -> bool:
        name = str(about)
        if self.phase is not Phase.RUNNING or self.jobs.get(name, 0) is not None:
            return False
        waiting = self.protocol.operators[name].next_triggered()[:many]
        if not waiting:
            return False
        self.protocol.start_job(name, waiting)
        self.jobs[name] = Job(waiting)
        return True

    def _run_job(self, about: object, _many: int, _outcome: str) -> bool:
        job = self.jobs.get(str(about))
        if self.phase is not Phase.RUNNING or job is None or job.results is not None:
            return False
        protocol = self.protocol.operators[str(about)]
        job.results = [(inset_id, list(protocol.generate(inset_id))) for inset_id in job.insets]
        return True

    def _note_job(self, about: object, _many: int, _outcome: str) -> bool:
        job = self.jobs.get(str(about))
        if self.phase is not Phase.RUNNING or job is None or job.results is None:
            return False
        self.protocol.generated(str(about), job.results)
        self.jobs[str(about)] = None
        self.step_open = True
        return True

    def _close(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.RUNNING or not self.step_open:
            return False
        self._submit()
        return True

    def _finish(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase is not Phase.RUNNING or self.step_open or not self._is_finished():
            return False
        self.finishing = True
        self.protocol.finish()
        self._submit()
        return True

    def _beat(self, _about: object, _many: int, _outcome: str) -> bool:
        if self.phase in (Phase.CLAIMED, Phase.GONE, Phase.FINISHED):
            return False
        self.beats += 1
        self.ready = self.ready or self.phase in (Phase.RUNNING, Phase.WAITING)
        desired = self.world.store.heartbeat(self.session.ref, self.beats, ready=self.ready, rss_bytes=0)
        self.heard = self.heard or desired is GroupState.DRAINING
        self.world.watch.a_replaced_driver_has_no_heartbeat(self)
        return True

    def _collect(self, _about: object, many: int, _outcome: str) -> bool:
        """A batch of garbage collection, through the committer as everything else (Section 3.6)."""
        if self.phase is not Phase.RUNNING or self.finishing:
            return False
        self.committer.queue.append([fx.Collect(tuple(spec.name for spec in self.operators), many)])
        return True

    def _expire(self, about: object, many: int, _outcome: str) -> bool:
        """A batch of retention or of shared bodies, by the group that is the last to finish."""
        sweeps = self.world.sweeps
        if self.phase is not Phase.RUNNING or self.finishing or not isinstance(about, int) or about >= len(sweeps):
            return False
        self.committer.queue.append([sweeps[about](many)])
        return True

    def _check(self, _about: object, _many: int, _outcome: str) -> bool:
        """A driver without anything to commit looks at its fence; nothing changes unless it raises.

        One without slots leaves when there will never be any for it.
        """
        looks = self.phase in (Phase.RUNNING, Phase.WAITING) and self.committer.is_idle()
        if not looks or self.world.is_locked(self.plan.name):
            return False
        self.session.check()
        return self.phase is Phase.WAITING and self.world.scaling.leave(self)


VERBS = (
    "register",
    "open",
    "ask",
    "recover",
    "rebuild",
    "fetch",
    "deliver",
    "read",
    "note_effect",
    "emit",
    "end_source",
    "drain",
    "discard",
    "start_job",
    "run_job",
    "note_job",
    "close",
    "finish",
    "beat",
    "collect",
    "expire",
    "check",
    "take",
    "commit",
    "resolve",
    "hand_over",
    "take_writes",
    "apply",
    "note_writes",
    "void",
    "join",
)
_METHODS = {verb: f"_{verb}" for verb in VERBS}
