"""Writer threads: one per (operator, connection), write actions in order, applied in groups (Algorithms 5 and 8).

An action reaches this thread only after the commit that logged it. The order of its steps is that of
`protocol.write_queue`, which stands here behind a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.driver.write_executors import Executors
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.write_queue import Applied, Compared, WriteQueue, WriterKey, WriteStep
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.systems.execution import WriteExecutor
from airflow_logio.systems.payloads.bodies import Bodies


class WriterThread:
    """The thread starts at once."""

    def __init__(
        self,
        operator: str,
        writer: ActionWriter,
        executor: WriteExecutor,
        bodies: Bodies,
        done: Callable[[Applied | Compared], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._bodies = bodies
        self._actions_at_once = writer.actions_at_once
        self._executor = executor
        self._done = done
        self._failed = failed
        self._queue = WriteQueue(operator, writer.connection, compares=executor.compares)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"logio-writer-{operator}", daemon=True)
        self._thread.start()

    def add(self, writes: Sequence[PendingWrite], *, recovered: bool = False, log_end: int = 0) -> None:
        """Hand over actions that are in the log; `recovered` ones were there when the group was rebuilt (Algorithm 8)."""
        with self._changed:
            self._queue.add(writes, recovered=recovered, log_end=log_end)
            self._changed.notify_all()

    def release(self) -> None:
        """The log knows that the marker was compared with it."""
        with self._changed:
            self._queue.release()
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """The loop has logged the success of everything that was handed over."""
        with self._changed:
            return self._queue.is_idle()

    def is_full(self) -> bool:
        """So much waits for the external system that the group should take no more events for now."""
        with self._changed:
            return self._queue.is_full()

    def settle(self, applied: Applied) -> None:
        """The loop has noted the result."""
        with self._changed:
            self._queue.settle(applied)

    def stop(self) -> threading.Thread:
        """Nothing more is begun. What is under way ends, and the thread with it: the thread is to be joined."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        return self._thread

    def _run(self) -> None:
        try:
            while self._take():
                while (step := self._queue.wants) is not None:
                    if step is WriteStep.WAIT and not self._is_released():
                        return
                    self._take_step(step)
        except BaseException as error:
            self._failed(error)
        finally:
            self._executor.close()

    def _take(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue.pending or self._stopping.is_set())
            return not self._stopping.is_set() and bool(self._queue.take(self._actions_at_once))

    def _take_step(self, step: WriteStep) -> None:
        match step:
            case WriteStep.COMPARE:
                self._compare()
            case WriteStep.APPLY:
                self._apply()
            case WriteStep.REPORT:
                self._report()

    def _is_released(self) -> bool:
        """Wait for it. False if the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.wants is not WriteStep.WAIT or self._stopping.is_set())
            return self._queue.wants is not WriteStep.WAIT

    def _compare(self) -> None:
        writes, log_end = [self._bodies.loaded(write) for write in self._queue.taken], self._queue.log_end
        assert log_end is not None
        self._executor.compare(writes, log_end, self._stopping)
        with self._changed:
            compared = self._queue.compared()
        self._done(compared)

    def _apply(self) -> None:
        writes = [self._bodies.loaded(write) for write in self._queue.taken]
        self._executor.execute(writes, self._queue.recovered, self._stopping)
        with self._changed:
            self._queue.applied()

    def _report(self) -> None:
        with self._changed:
            applied = self._queue.report()
        self._done(applied)


def writer_threads(
    members: Mapping[str, Operator],
    slots: Mapping[int, int] | None,
    executors: Executors,
    bodies: Bodies,
    done: Callable[[Applied | Compared], None],
    failed: Callable[[BaseException], None],
) -> dict[WriterKey, WriterThread]:
    """The writer threads of an epoch; they start at once.

    `slots` → how often they have moved; None for a group that is not replicated.
    """
    threads = {}
    for name, operator in members.items():
        if isinstance(operator, ActionWriter):
            executor = executors.of(name, operator, _moves(name, slots))
            threads[name, operator.connection] = WriterThread(name, operator, executor, bodies, done, failed)
    return threads


def _moves(operator: str, slots: Mapping[int, int] | None) -> int:
    slot = slot_of(operator)
    return 0 if slots is None or slot is None else slots[slot]
