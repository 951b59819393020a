"""Commits and write actions of a simulated driver: what the committer and the writer threads do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import ref

from airflow_logio.errors import EpochVoid, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.writes import PendingWrite, unapplied
from airflow_logio.runtime.systems.connections import WriterIdentity
from airflow_logio.store.records import FenceRow
from airflow_logio.testing.simulator.driver.driver_state import Incarnation, Phase
from airflow_logio.testing.simulator.driver.threads import At, Writer
from airflow_logio.testing.simulator.external_systems import Guarantee
from airflow_logio.testing.simulator.write_attempts import WriteAttempt

if TYPE_CHECKING:
    pass


class Committing(Incarnation):
    """Transactions with every outcome, and what may leave the group after one."""

    def _submit(self) -> None:
        self.step_open = False
        if effects := self.protocol.close_step():
            self.committer.queue.append(effects)

    # --- commits ------------------------------------------------------------------------------------------------------

    def _take(self, _about: object, many: int, _outcome: str) -> bool:
        if self.phase is not Phase.RUNNING or self.committer.at is not At.IDLE or not self.committer.queue:
            return False
        self.committer.take(many, self.world.scenario.codec)
        return True

    def _commit(self, _about: object, _many: int, outcome: str) -> bool:
        """Outcomes: committed; ``lost``: committed, but nobody says so; ``fails``; ``doubt``: decided later."""
        committer = self.committer
        if committer.at is not At.TAKEN or self.world.is_locked(self.plan.name):
            return False
        if outcome == "doubt":
            self.world.doubt(self, committer.taken)
        elif outcome != "fails":
            self.world.commit(self, committer.taken)
        if outcome:
            committer.at = At.UNKNOWN
        else:
            self._committed()
        return True

    def _resolve(self, _about: object, _many: int, _outcome: str) -> bool:
        """Read-back: the fence row, under its lock, says what became of the transaction (DESIGN decision 3)."""
        if self.committer.at is not At.UNKNOWN or not self._may_read_back():
            return False
        row = self.session.open()
        if row.epoch != self.fence.epoch:
            raise EpochVoid(f"epoch {self.fence.epoch} is void, the log is at {row.epoch}")
        if row.commit_no == self.fence.commit_no + 1:
            self._committed()
        elif row.commit_no == self.fence.commit_no:
            self.committer.at = At.TAKEN
        else:
            raise LogInconsistent(f"commit {self.fence.commit_no + 1} is unknown, the log is at {row.commit_no}")
        return True

    def _committed(self) -> None:
        self.committer.at = At.DONE
        self.fence = FenceRow(self.fence.incarnation, self.fence.epoch, self.fence.commit_no + 1)
        self.fresh = False
        if self.dropped:
            said = {(one.operator, one.action_id) for one in self.committer.taken if type(one) is fx.DropRead}
            self.dropped -= said

    def _hand_over(self, _about: object, _many: int, _outcome: str) -> bool:
        """After the commit: what may leave the group now that it is durable."""
        committer = self.committer
        if committer.at is not At.DONE:
            return False
        for effect in committer.taken:
            if type(effect) is fx.LogWrite:
                self._hand(pending_write(effect))
            elif type(effect) is fx.ReadDone:
                drops = self.protocol.source(effect.operator).to_drop()
                self.drops += [(effect.operator, one, ref) for one, ref in drops if one == effect.action_id]
            elif type(effect) is fx.DrainGroup:
                self.drained = True
        committer.taken = []
        committer.at = At.IDLE
        if self.finishing and committer.is_idle():
            self.phase, self.is_alive = Phase.FINISHED, False
        return True

    # --- write actions ------------------------------------------------------------------------------------------------

    def _hand(self, write: PendingWrite) -> None:
        key = (write.operator, write.connection)
        if key not in self.writers:
            self.writers[key] = Writer(key)
        self.writers[key].add(write)

    def _take_writes(self, about: object, many: int, _outcome: str) -> bool:
        writer = self._writer(about)
        if self.phase is not Phase.RUNNING or writer is None or writer.at is not At.IDLE or not writer.pending:
            return False
        writer.take(many)
        return True

    def _writer(self, about: object) -> Writer | None:
        assert isinstance(about, tuple)
        return self.writers.get(about)

    def _apply(self, about: object, many: int, outcome: str) -> bool:
        """Up to `many` steps of an attempt at the external system.

        Outcomes: applied, if they were enough; ``lost``: then the answer is lost; ``fails``: the connection breaks.
        """
        writer = self._writer(about)
        if writer is None or writer.at not in (At.TAKEN, At.UNKNOWN):
            return False
        if outcome == "fails":
            writer.give_up()
            return True
        if self._attempt(writer, many):
            writer.at = At.UNKNOWN if outcome == "lost" else At.DONE
            if writer.at is At.UNKNOWN:
                writer.todo = ()
                writer.attempt = None
        return True

    def _attempt(self, writer: Writer, many: int = 1) -> bool:
        """True if the system has now applied all of it; a checkable one is asked first, and written to in another step."""
        system = self.world.systems[writer.key[1]]
        if system.guarantee is Guarantee.CONDITIONAL:
            if writer.attempt is None:
                self.world.watch.before_write(writer.key, writer.taken)
                token = self._token(writer.key[0])
                writer.attempt = WriteAttempt(system, writer.key, token, writer.taken, is_alive=_client(self, writer))
            if not writer.attempt.advance(many):
                return False
            if writer.attempt.wrote:
                self.world.watch.a_lower_token_writes_nothing(writer.key, writer.attempt.token)
        elif system.guarantee is Guarantee.IDEMPOTENT:
            self.world.watch.before_write(writer.key, writer.taken)
            system.upsert(writer.key, writer.taken)
        elif not writer.todo:
            writer.todo = unapplied(writer.taken, system.marker(writer.key))
            return not writer.todo
        else:
            self.world.watch.before_write(writer.key, writer.todo)
            system.write(writer.key, writer.todo)
            writer.todo = ()
        return True

    def _token(self, operator: str) -> int:
        slot = slot_of(operator)
        moves = 0 if slot is None or self.slots is None else self.slots[slot]
        return WriterIdentity("", self.number, 0.0).token_after(moves)

    def _note_writes(self, about: object, _many: int, _outcome: str) -> bool:
        writer = self._writer(about)
        if self.phase is not Phase.RUNNING or writer is None or writer.at is not At.DONE:
            return False
        first, last = writer.taken[0].number, writer.taken[-1].number
        self.protocol.writes_done(*writer.key, first, last, sum(write.records for write in writer.taken))
        writer.outstanding -= len(writer.taken)
        writer.at = At.IDLE
        self.step_open = True
        return True


def _client(driver: Incarnation, writer: Writer) -> Callable[[], bool]:
    """Whether a writer thread lives: its driver does, and has not joined it. The locks of a database hold no driver."""
    of_driver, of_writer = ref(driver), ref(writer)

    def is_alive() -> bool:
        alive = of_driver()
        return alive is not None and alive.is_alive and of_writer() is not None

    return is_alive


def pending_write(effect: fx.LogWrite) -> PendingWrite:
    return PendingWrite(
        effect.operator, effect.connection, effect.number, effect.header, effect.records, effect.body or b""
    )
