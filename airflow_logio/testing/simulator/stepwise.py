"""Work that a schedule takes a few steps at a time, so that a driver or process may die between any two.

Work of the simulator is a generator (`Steps`). Code of the product that asks a log or a store knows nothing of steps: an
exception pauses it at a question, and it resumes by replaying the earlier answers (`Questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from airflow_logio.errors import LogioError

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps; a driver may die after each."""


def finished(steps: Steps[Any], many: int) -> Any:
    """Take at most so many steps: the result if that was the last one, otherwise None."""
    try:
        for _ in range(many):
            next(steps)
    except StopIteration as ended:
        return ended.value
    return None


class Paused(BaseException):
    """The code that asks waits before its next question."""


class Questions:
    """The questions that some code has asked, with their answers."""

    def __init__(self) -> None:
        self._answers: list[tuple[Any, Exception | None]] = []
        self._heard = self._left = 0

    def begin(self, questions: int) -> None:
        """From now on, so many new questions are allowed."""
        self._heard, self._left = 0, questions

    def ask(self, question: Callable[[], T]) -> T:
        """Ask one question, or replay the answer. Raises `Paused`, and what the question raises."""
        if self._heard == len(self._answers):
            if self._left <= 0:
                raise Paused
            self._left -= 1
            try:
                self._answers.append((question(), None))
            except (LogioError, OSError) as error:
                self._answers.append((None, error))
        answer, failure = self._answers[self._heard]
        self._heard += 1
        if failure is not None:
            raise failure
        return cast(T, answer)

    def forget_frames(self) -> None:
        """Tracebacks would hold the code that asks, and its world, until the garbage collector runs."""
        for _, failure in self._answers:
            if failure is not None:
                failure.__traceback__ = None

    def clear(self) -> None:
        """Forget all answers: what is run next begins."""
        self._answers.clear()
