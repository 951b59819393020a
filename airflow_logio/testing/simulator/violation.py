"""The exception that ends a schedule that has found something wrong."""

from __future__ import annotations


class Violation(Exception):
    """Something happened that must not happen. `invariant` names the sentence that does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant.replace('_', ' ')}: {what}")
        self.invariant = invariant
        self.what = what
