"""`RangeSource`: a source of offsets, whose records Spark reads. One range is one read action and one event (ADR-82)."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_logio.dataflow.operators import SourceBatch, SourceOperator, SparkFrame
from airflow_logio.dataflow.sources.connected import RangeConnection
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.values import ExecutionMode

START, END, LIMIT = "start", "end", "limit"
UNASKED = {START: None, END: None}
"""The first read action of a source with connections: its driver asks where to begin, and logs that as the next one."""

Offset = Any
"""A place in the source: a JSON value that its author understands. Offsets are compared for equality only."""


class RangeSource(SourceOperator):
    """A source of anything with offsets that Spark reads: folders that grow, tables by a rising column, logs of
    messages. One range is one read action and one event (ADR-82).

    Implement `first`, `latest` and `frame`; `last` for runs that end by themselves; `observed` if a range can change
    while Spark reads it; `forget` if the external system is to be told what it may remove; `connected` if it reads
    connections of the pipeline.

    A run reads one range after the other, each from the end of the one before. A range is logged before it is read, and
    read again by a recovery: `frame` must return the same set of records for it every time, in any order, or raise
    SourceChanged. With ``replayable = False`` it need not: what a range has returned is stored before its event leaves,
    and is not read again.

    An offset is a place in the source: a JSON value that its author understands. Offsets are compared for equality
    only.
    """

    mode = ExecutionMode.DATAFRAME
    outputs = ("out",)

    def connected(self, connections: Callable[[str], RangeConnection]) -> RangeSource:
        """The source as a driver asks it, given its connections; itself by default. A source whose `connections` names
        some is asked by drivers only, as what this returns.

        :param connections: gives the connection of a name.

        Make another object: this one is part of the pipeline, and keeps no URL. What tasks work with gets none either.
        """
        return self

    @abstractmethod
    def first(self, params: Mapping[str, Any]) -> Offset:
        """The offset at which a run begins; asked once per run, or with connections until the first range is logged.

        :param params: the run's parameters.
        """

    def last(self, params: Mapping[str, Any]) -> Offset | None:
        """The offset at which a run ends; asked right behind `first`. None (the default): it ends when it is drained.

        :param params: the run's parameters.
        """
        return None

    @abstractmethod
    def latest(self, params: Mapping[str, Any], start: Offset, limit: Offset | None) -> Offset:
        """The end of the next range; `start` itself if there is nothing new. Asked in the driver, before the range is
        logged.

        :param params: the run's parameters.
        :param start: where the range begins.
        :param limit: what `last` has returned: no range ends beyond it.

        Raises ExternalUnavailable, SourceChanged, ConfigurationError.
        """

    @abstractmethod
    def frame(self, spark: Any, params: Mapping[str, Any], start: Offset, end: Offset) -> SparkFrame:
        """The records behind `start`, up to and including `end`, as a lazy DataFrame.

        :param spark: the Spark session.
        :param params: the run's parameters.
        :param start: where the range begins.
        :param end: where it ends.

        A run keeps the columns of its first event: those that later ranges have besides are left out, and a range that
        lacks one, or has another type, parks the group. Raises SourceChanged.
        """

    def observed(self, params: Mapping[str, Any], start: Offset, end: Offset) -> Any:
        """What tells in the driver whether the range is still what it was; compared for equality. The default sees
        nothing.

        :param params: the run's parameters.
        :param start: where the range begins.
        :param end: where it ends.

        `frame` is lazy: Spark reads later than it looks. So this is asked before `frame`, and again when Spark has
        read, or has failed, and before an event is made of it. Another answer parks the group, and nothing of the range
        is kept. It may raise SourceChanged itself.
        """
        return None

    def forget(self, params: Mapping[str, Any], end: Offset) -> None:
        """Called when no event up to `end` will be read again: the log and the payload store have what was made of
        them.

        :param params: the run's parameters.
        :param end: the offset.

        Does nothing by default. Called in the driver, never before that is durable, with ends that do not fall, at
        least once for the last one; a driver that was replaced may call it late. Raises ExternalUnavailable to be
        called again.
        """

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The first range; the limit of the run is its ``plan``. With connections it is empty: they are not asked here."""
        if self.connections():
            return dict(UNASKED)
        described = self._begun(params)
        limit = described.pop(LIMIT, None)
        return described if limit is None else {**described, "plan": {LIMIT: limit}}

    def _begun(self, params: Mapping[str, Any]) -> dict[str, Any]:
        first, limit = _kept(self.first(params), "first"), _kept(self.last(params), "last")
        described = self._range(params, first, limit)
        return described if limit is None else {**described, LIMIT: limit}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next range, which is empty if nothing has come yet. None at the end of a bounded run."""
        if is_begin := bool(self.connections()) and is_unasked(previous):
            following = self._begun(params)
            start, limit = following[START], following.get(LIMIT)
        else:
            start, limit = previous[END], previous.get(LIMIT, previous.get("plan", {}).get(LIMIT))
        if limit is not None and start == limit:
            return None
        if not is_begin:
            following = self._range(params, start, limit)
        if limit is not None and following[END] == start:
            raise OperatorFailed(
                f"the source ends at offset {limit!r} and finds nothing behind {start!r}: latest() must come to what "
                "last() has returned"
            )
        return {**following, LIMIT: limit} if LIMIT in previous else following

    def _range(self, params: Mapping[str, Any], start: Offset, limit: Offset | None) -> dict[str, Any]:
        return {START: start, END: _kept(self.latest(params, start, limit), "latest")}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        raise OperatorFailed("the records of a RangeSource are read by Spark: frame() returns them")


def _kept(offset: Offset, method: str) -> Offset:
    """As the log gives it back: what is compared with it has been there. Raises OperatorFailed if the log cannot hold it."""
    try:
        return json.loads(json.dumps(offset, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise OperatorFailed(
            f"{method}() returned {offset!r}, and offsets are JSON values, which the log keeps: return numbers, texts, or "
            f"lists and dicts of them ({error})"
        ) from None


def forgets(operator: object) -> bool:
    """Whether a source is to be told what it may forget."""
    return isinstance(operator, RangeSource) and type(operator).forget is not RangeSource.forget


def is_unasked(action: Mapping[str, Any]) -> bool:
    """Whether the source has not been asked yet where it begins."""
    return action[START] is None and action[END] is None


def is_empty(action: Mapping[str, Any]) -> bool:
    """Whether a range has no records, because nothing has come yet."""
    return bool(action[START] == action[END])
