"""Windows: the State Update and Triggering phases ready made (Section 2, the two Examples of Input Sets).

A window assigns whole Arrow slices, keeps its triggering condition in the global state alone, and can find the part of
a logged event again without that state. Windows are frozen values; a `WindowedOperator` delegates to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_logio.dataflow.durations import window_origin, window_seconds
from airflow_logio.dataflow.names import check_column, check_count
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.timeline import window_numbers
from airflow_logio.errors import OperatorFailed

WINDOW_START = "window_start"


class Window(ABC):
    """How events become Input Sets; the methods are those of `StatefulOperator`, on Arrow tables."""

    suits_many_ports: ClassVar[bool] = False
    """Whether a function with several input ports may use it."""
    partitionable: ClassVar[bool] = False
    """Whether the Input Sets of part of the stream, by key, are parts of the Input Sets of the whole stream."""

    def ports(self) -> tuple[str, ...]:
        """The input ports it is made for; empty if it takes those of the function, in the order of arrival."""
        return ()

    def port_order(self) -> tuple[str, ...]:
        """The cyclic order in which it wants the events of its ports; empty if as they come."""
        return ()

    @abstractmethod
    def initial_state(self) -> dict[str, Any]:
        """Global state before the first event; msgpack-able."""

    @abstractmethod
    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        """{inset_id: records}, in the order of `order`; together the parts are the records of the event, each once."""

    @abstractmethod
    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        """The records that `assign` gave, or would have given, to the Input Set."""

    @abstractmethod
    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """The complete ones of the open Input Sets, in the order of `order`."""

    def flush(self, open_insets: Sequence[str]) -> Sequence[str]:
        """All open Input Sets, in the order of `order`: what is generated at the end of the stream."""
        return sorted(open_insets, key=self.order)

    def admits(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        """Whether the function is to be called for a triggered Input Set; if not, its Output Set is empty."""
        return True

    def progress_name(self) -> str:
        """Names what `progress` counts: the same for windows that close at the same time."""
        return ""

    def ordered_on(self) -> str | None:
        """The column by which events must come in order, because a later record closes earlier Input Sets; None (the default)
        if they may come in any order."""
        return None

    def progress(self, event: InputEvent) -> str | None:
        """How far the stream has come with this event, as text that sorts like time; None if it does not say.

        Where only part of the stream arrives, `assign` finds it in `InputEvent.progress`, under `progress_name`.
        """
        return None

    @abstractmethod
    def order(self, inset_id: str) -> int | str:
        """The place of an Input Set in the order in which they close."""

    def tags(self, inset_ids: Sequence[str]) -> dict[str, pa.Array]:
        """Facts of Input Sets that a generative function may ask for: name → one value per Input Set."""
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""


@dataclass(frozen=True, slots=True)
class EveryEvents(Window):
    """Input Sets of `count` events each, named ``"1"``, ``"2"``, ... (the paper's OP2).

    Global state: ``{"events": number of events seen}``. Input Set b is complete when ``events >= b * count``; the last,
    shorter one is flushed at the end of the stream. An event without records counts. Events of several input ports count
    alike, as they arrive (the paper's second use case, not synchronized). Raises PipelineDefinitionError.
    """

    suits_many_ports: ClassVar[bool] = True

    count: int

    def __post_init__(self) -> None:
        check_count("EveryEvents: count", self.count)

    def initial_state(self) -> dict[str, Any]:
        return {"events": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        batch = state["events"] // self.count + 1
        state["events"] += 1
        return {str(batch): event.table}

    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = state["events"] // self.count
        return sorted((inset for inset in open_insets if int(inset) <= complete), key=int)

    def order(self, inset_id: str) -> int:
        return int(inset_id)

    def describe(self) -> dict[str, Any]:
        return {"window": "EveryEvents", "count": self.count}


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    """Input Sets of the records of one stretch of time each, by the timestamp column `on` (the paper's OP3).

    An Input Set is named by the start of its window, ``"2017-03-05T10:00"`` (with seconds where the length has some),
    so that names sort like times. Global state: ``{"watermark": the latest window seen}``. A window is complete when a
    record of a later one has been seen. An event's records may come in any order, but a record of a window before the
    watermark is late and raises OperatorFailed: its window may be generated already, and dropping it would be silent
    loss. Raises OperatorFailed also for null timestamps, PipelineDefinitionError for a length that fits no day.
    """

    partitionable: ClassVar[bool] = True

    length: str
    on: str

    def __post_init__(self) -> None:
        window_seconds(self.length)
        check_column(self.on)

    def initial_state(self) -> dict[str, Any]:
        return {"watermark": None}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        parts = {self._name(number): records for number, records in self._slices(event)}
        self._refuse_late(event, parts, state["watermark"])
        seen = (state["watermark"], event.progress.get(self.progress_name()), *parts)
        state["watermark"] = max((one for one in seen if one is not None), default=None)
        return parts

    def progress_name(self) -> str:
        return f"{self.on}/{window_seconds(self.length)}" + ("/weeks" if window_origin(self.length) else "")

    def ordered_on(self) -> str:
        return self.on

    def progress(self, event: InputEvent) -> str | None:
        """The latest window of its records."""
        if not event.table.num_rows:
            return None
        numbers, _ = self._numbers(event)
        return self._name(int(np.max(numbers)))

    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        number = (int(self._start(inset_id).timestamp()) - window_origin(self.length)) // window_seconds(self.length)
        numbers, ordered = self._numbers(event)
        if not ordered:
            return event.table.filter(pa.array(numbers == number))
        begin, end = np.searchsorted(numbers, [number, number + 1]).tolist()
        return event.table.slice(begin, end - begin)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        watermark = state["watermark"]
        return [] if watermark is None else sorted(inset for inset in open_insets if inset < watermark)

    def order(self, inset_id: str) -> str:
        return inset_id

    def tags(self, inset_ids: Sequence[str]) -> dict[str, pa.Array]:
        """``window_start``: the start of each window, timestamp[us] in UTC without zone."""
        starts = [self._start(inset_id).replace(tzinfo=None) for inset_id in inset_ids]
        return {WINDOW_START: pa.array(starts, pa.timestamp("us"))}

    def describe(self) -> dict[str, Any]:
        origin = {"origin": window_origin(self.length)} if window_origin(self.length) else {}
        return {"window": "Tumbling", "seconds": window_seconds(self.length), "on": self.on, **origin}

    def _numbers(self, event: InputEvent) -> tuple[npt.NDArray[np.int64], bool]:
        return window_numbers(event, self.on, window_seconds(self.length), window_origin(self.length))

    def _slices(self, event: InputEvent) -> list[tuple[int, pa.Table]]:
        """(window number, its records), by window; slices share memory where the windows come in order."""
        if event.progress and not event.table.num_rows:
            return []  # it only brings progress, and may have other columns than the records
        numbers, ordered = self._numbers(event)
        if not ordered:
            return [(int(n), event.table.filter(pa.array(numbers == n))) for n in np.unique(numbers)]
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        bounds = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
        return [(int(numbers[begin]), event.table.slice(begin, end - begin)) for begin, end in bounds if end > begin]

    def _name(self, number: int) -> str:
        seconds = window_seconds(self.length)
        try:
            start = datetime.fromtimestamp(number * seconds + window_origin(self.length), UTC).replace(tzinfo=None)
        except (OverflowError, ValueError, OSError) as error:
            raise OperatorFailed(f"column {self.on!r} holds a time outside the years 1 to 9999") from error
        return start.isoformat(timespec="minutes" if seconds % 60 == 0 else "seconds")

    @staticmethod
    def _start(inset_id: str) -> datetime:
        return datetime.fromisoformat(inset_id).replace(tzinfo=UTC)

    def _refuse_late(self, event: InputEvent, parts: Mapping[str, pa.Table], watermark: str | None) -> None:
        late = [name for name in parts if watermark is not None and name < watermark]
        if late:
            records = sum(parts[name].num_rows for name in late)
            raise OperatorFailed(
                f"event {event.event_id} on port {event.port!r} brings {records} late record(s), the earliest for "
                f"window {late[0]}: a record of window {watermark} has been seen, so the earlier windows are closed. "
                f"Order the input by {self.on!r} (ParquetSource(..., ordered_by={self.on!r}) refuses unordered files)"
            )
