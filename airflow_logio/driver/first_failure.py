"""An error at the first thing that an operator does: tried once more in the same process, then parked (ADR-70)."""

from __future__ import annotations

from airflow_logio.errors import FailedAtOnce, OperatorFailed


def may_be_tried_again(error: OperatorFailed, incarnation: int) -> bool:
    """Whether the process that met it may try once more: a recovery spends budget, and its driver would meet it, too."""
    return incarnation == 1 and error.is_first and error.at is not None


class FirstFailure:
    """What the first incarnation of a group remembers of such an error, over its epochs."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._point: str | None = None

    def check(self, error: OperatorFailed) -> None:
        """Return if the group may try again in this process. Raises `FailedAtOnce` if it has and failed at the same place,
        and `error` itself where a new driver is to try."""
        if not may_be_tried_again(error, self._incarnation):
            raise error
        if self._point == str(error.at):
            raise FailedAtOnce(
                f"it failed at {error.at}, the first that the operator had to do, and once more when that was tried again: "
                f"{error}"
            ) from error
        if self._point is not None:
            raise error
        self._point = str(error.at)
