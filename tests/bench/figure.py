"""One figure with its target, for the report and for its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. `database` is where the log is."""

    database: str
    what: str
    value: float
    unit: str
    target: str
    details: str

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def line(self) -> str:
        return (
            f"{self.database:9} {self.what:44} {self.value:6.2f} {self.unit:12} (target {self.target}); {self.details}"
        )
