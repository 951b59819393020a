"""`Window`: the State Update and Triggering phases ready made (Section 2, the two Examples of Input Sets).

A window assigns whole Arrow slices, keeps its triggering condition in the global state alone, and can find the part of
a logged event again without that state. Windows are frozen values; a `WindowedOperator` delegates to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.windows.timeline import Grid
from airflow_logio.protocol.record_rules import Part

WINDOW_START = "window_start"


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a window must know of an event to say which Input Sets it is in, wherever its records are."""

    port: str
    event_id: int
    windows: Mapping[int, int] = field(default_factory=dict)
    """Number of a window of time (`Window.grid`) → records of the event; none of them 0."""
    progress: str | None = None
    """How far the windows of the whole stream have come, if only part of it arrives."""


class Window(ABC):
    """How events become Input Sets. Use `AllOfRun`, `EveryEvents`, `Tumbling` or `Synchronized`, or derive one of your own.

    Implement `initial_state`, `assign`, `part`, `triggered`, `order` and `describe`; they are those of
    `StatefulOperator`, on Arrow tables. `flush`, `admits` and the rest have defaults. A window is a frozen value: what
    changes during a run is in `state`, the global state.

    The class attributes say where it may be used: `suits_many_ports` by a function with several input ports,
    `partitionable` in a group that is replicated by key, `suits_datasets` in mode ``dataframe`` (then implement
    `joined`, too).
    """

    suits_many_ports: ClassVar[bool] = False
    """Whether a function with several input ports may use it."""
    partitionable: ClassVar[bool] = False
    """Whether the Input Sets of part of the stream, by key, are parts of the Input Sets of the whole stream."""
    suits_datasets: ClassVar[bool] = False
    """Whether mode ``dataframe`` may use it: `joined`, and `grid` if its Input Sets are windows of time, say it all."""

    def ports(self) -> tuple[str, ...]:
        """The input ports it is made for; empty if it takes those of the function, in the order of arrival."""
        return ()

    def port_order(self) -> tuple[str, ...]:
        """The cyclic order in which it wants the events of its ports; empty if as they come."""
        return ()

    @abstractmethod
    def initial_state(self) -> dict[str, Any]:
        """Global state before the first event, of values that `StatefulOperator.initial_state` allows."""

    @abstractmethod
    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        """{inset_id: records}, in the order of `order`. Together the parts are the records of the event, each once.

        :param event: the input event.
        :param state: the global state, which it may change.
        """

    def joined(self, arrival: Arrival, state: dict[str, Any]) -> Sequence[str]:
        """The Input Sets that an event is in, in the order of `order`: what `assign` does, without the records. For
        mode ``dataframe``.

        :param arrival: what is known of the event.
        :param state: the global state, which it may change.
        """
        raise NotImplementedError(f"{type(self).__name__} says suits_datasets, and has no joined()")

    def for_datasets(self) -> Window:
        """Itself, with the bounds that it has in mode ``dataframe``."""
        return self

    def grid(self) -> Grid | None:
        """Its windows of time, `number` says which one is an Input Set; None if whole events are in its Input Sets."""
        return None

    def record_part(self) -> Part | None:
        """Which records of its events an Input Set has, for lineage of records; None (the default) if that is not known."""
        return None

    def number(self, inset_id: str) -> int:
        """The number of the window of time that is the Input Set; for those with a `grid`.

        :param inset_id: name of the Input Set.
        """
        raise NotImplementedError(f"Input Sets of {type(self).__name__} are no windows of time")

    @abstractmethod
    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        """The records that `assign` gave, or would have given, to the Input Set. Pure: no state, no clock, no random
        number.

        :param event: the input event, read back from the log.
        :param inset_id: name of the Input Set.
        """

    @abstractmethod
    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """The complete ones of the open Input Sets, in the order of `order`.

        :param state: the global state.
        :param open_insets: names of the Input Sets that have events and are not generated yet.
        """

    def flush(self, open_insets: Sequence[str]) -> Sequence[str]:
        """All open Input Sets, in the order of `order`: what is generated at the end of the stream.

        :param open_insets: names of the Input Sets that have events and are not generated yet.
        """
        return sorted(open_insets, key=self.order)

    def admits(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        """Whether the function is to be called for a triggered Input Set; if not, its Output Set is empty. By default
        always.

        :param inset_id: name of the Input Set.
        :param state: the global state.
        """
        return True

    def progress_name(self) -> str:
        """Names what `progress` counts: the same for windows that close at the same time."""
        return ""

    def ordered_on(self) -> str | None:
        """The column by which events must come in order, because a later record closes earlier Input Sets; None (the default)
        if they may come in any order."""
        return None

    def progress(self, event: InputEvent) -> str | None:
        """How far the stream has come with this event, as text that sorts like time; None (the default) if it does not
        say.

        :param event: the input event.

        Where only part of the stream arrives, `assign` finds it in `InputEvent.progress`, under `progress_name`.
        """
        return None

    @abstractmethod
    def order(self, inset_id: str) -> int | str:
        """The place of an Input Set in the order in which they close.

        :param inset_id: name of the Input Set.
        """

    def tags(self, inset_ids: Sequence[str]) -> dict[str, pa.Array]:
        """Facts of Input Sets that a generative function may ask for: name → one value per Input Set. By default none.

        :param inset_ids: names of the Input Sets.
        """
        return {}

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""


def is_as_in(base: type, window: Window, *methods: str) -> bool:
    """Whether the window has these methods of a class of ours, not overridden."""
    return all(getattr(type(window), name) is getattr(base, name) for name in methods)
