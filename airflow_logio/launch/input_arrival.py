"""What a run waits for before it is one: the input of its sources (`Pipeline.source(..., wait=...)`).

A look asks each source once and changes nothing. What waits decides by `waiting` when to look again: a task of Airflow
between two deferrals, `logio run` in its terminal. Nothing is in the log meanwhile, and no process of Spark runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from airflow_logio.databases import with_driver
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.sources import QuerySource, TableSource
from airflow_logio.dataflow.sources.arrival import FAIL, Awaited, InputArrival, InputGone, awaited_by, read_by
from airflow_logio.dataflow.unavailability import is_outage
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, authored_frames
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.connections import DeclaredConnection
from airflow_logio.systems.warehouse import Warehouse

UrlOf = Callable[[str], str]
"""Connection of the pipeline → its URL; called for what is asked only."""
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Lacking:
    """A source whose input is not there."""

    source: str
    arrival: InputArrival
    what: str
    """What is not there yet, in words."""
    places: tuple[Awaited, ...] = ()
    """Where it will be, if that is in a file system and nothing else decides."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A look that has found that something is not there, in time."""

    lacking: Sequence[Lacking]
    since: datetime
    until: datetime
    """When the first of them has waited for as long as it may."""

    @property
    def places(self) -> Sequence[Awaited] | None:
        """What to look for in file systems; None if that would not tell all."""
        found = [place for one in self.lacking for place in one.places]
        return found if all(one.places for one in self.lacking) else None

    @property
    def what(self) -> str:
        """What is waited for, in words."""
        return "; ".join(f"source {one.source!r}: {one.what}" for one in self.lacking)

    def __str__(self) -> str:
        return f"waits for its input since {_said(self.since)}, until {_said(self.until)} at most: {self.what}"


def waits(pipeline: Pipeline) -> bool:
    """Whether anything of a pipeline is looked at before a run."""
    return bool(pipeline.arrivals)


def may_begin(found: Run | None) -> bool:
    """Whether a run would begin where the log has this one, so that its input matters: a run that resumes has noted what it
    reads."""
    return found is None or found.state in (RunState.FINISHED, RunState.SUPERSEDED, RunState.REMOVING)


class InputLook:
    """One look at the input of a run.

    :param pipeline: as the run has it.
    :param params: the checked values of its parameters.
    :param url_of: connection of the pipeline → its URL.
    """

    def __init__(self, pipeline: Pipeline, params: Mapping[str, Any], url_of: UrlOf) -> None:
        self._pipeline = pipeline
        self._params = params
        self._url_of = url_of

    def waiting(self, since: datetime, now: datetime, next_step: str) -> Waiting | None:
        """What is not there; None if all of it is.

        :param since: when the first look was.
        :param next_step: the end of the sentence for what is not there in time: what to do when it is.

        Raises `ConfigurationError` for what is not there in time, and for what time does not mend.
        """
        lacking = self._lacking
        if not lacking:
            return None
        waited = (now - since).total_seconds()
        late = [one for one in lacking if waited >= one.arrival.seconds]
        if late:
            one = late[0]
            raise ConfigurationError(
                f"the input of source {one.source!r} of pipeline {self._pipeline.name!r} is not there: {one.what}. It was "
                f"waited for since {_said(since)}, {in_words(waited)}, and wait={one.arrival.wait!r} of the source is over. "
                f"Nothing was started. {next_step}"
            )
        first = min(one.arrival.seconds for one in lacking)
        return Waiting(lacking, since, datetime.fromtimestamp(since.timestamp() + first, UTC))

    def check_rows(self) -> None:
        """Raises `ConfigurationError` for a source without a row whose author has said ``on_empty="fail"``."""
        for name, arrival in self._pipeline.arrivals.items():
            if arrival.on_empty != FAIL:
                continue
            source = self._source(name)
            try:
                is_empty = not self._has_rows(name, source)
            except InputGone:
                continue  # the run is refused for it
            except (ConfigurationError, ExternalUnavailable) as error:
                raise type(error)(f"source {name!r}: {error}") from error
            if is_empty:
                what = ", ".join(place.path for place in read_by(source, self._params)) or _what_is_asked(source)
                raise ConfigurationError(
                    f"the input of source {name!r} of pipeline {self._pipeline.name!r} is there, and has no row: {what}. "
                    "Nothing was started, because the source says on_empty='fail'. Ask who writes it; or say "
                    "on_empty='finish', and a run without rows finishes"
                )

    @cached_property
    def _lacking(self) -> Sequence[Lacking]:
        return [one for name, arrival in self._pipeline.arrivals.items() if (one := self._look(name, arrival))]

    def _look(self, name: str, arrival: InputArrival) -> Lacking | None:
        if arrival.wait is None:
            return None
        source = self._source(name)
        places: Sequence[Awaited] = ()
        try:
            places = awaited_by(source, arrival, self._params)
            said = self._missing(name, source, arrival, places)
        except ConfigurationError as error:
            raise ConfigurationError(f"source {name!r}: {error}") from error
        except ExternalUnavailable as error:
            said = str(error)
        return None if said is None else Lacking(name, arrival, said, tuple(places))

    def _missing(
        self, name: str, source: SourceOperator, arrival: InputArrival, places: Sequence[Awaited]
    ) -> str | None:
        if arrival.query is not None:
            partition = self._pipeline.partition
            names = arrival.placeholders()
            instants = () if partition is None else names.intersection(partition.names[1:])
            values = {one: self._params[one] for one in names}
            has_rows = self._asked(
                name, source, lambda asked: asked.has_rows(arrival.query or "", QuerySource.bound(values, instants))
            )
            return None if has_rows else f"no row of {' '.join(arrival.query.split())} with {values}"
        if places:
            return next(filter(None, (place.missing() for place in places)), None)
        if isinstance(source, QuerySource | TableSource):
            return None if self._has_rows(name, source) else f"no row yet: {_what_is_asked(source)}"
        return _of_author(source, self._params)

    def _has_rows(self, name: str, source: SourceOperator) -> bool:
        if isinstance(source, QuerySource):
            action = source.action(self._params)
            return self._asked(
                name, source, lambda asked: asked.has_rows(source.statement_of(asked, action), source.values_of(action))
            )
        if isinstance(source, TableSource):
            rows = QuerySource(source.connection, table=source.table)
            return self._asked(
                name, source, lambda asked: asked.has_rows(rows.statement_of(asked, rows.action({})), {})
            )
        return any(place.has_rows() for place in read_by(source, self._params))

    def _asked(self, name: str, source: SourceOperator, ask: Callable[[DeclaredConnection], bool]) -> bool:
        """What a database answers. Raises `ExternalUnavailable`, `ConfigurationError`."""
        (connection,) = source.sql_connections()
        url = with_driver(self._url_of(connection))
        with closing(Warehouse(connection, url)) as warehouse:
            return ask(DeclaredConnection(url, lambda: warehouse, f"source {name!r}"))

    def _source(self, name: str) -> SourceOperator:
        source = self._pipeline.operators[name]
        assert isinstance(source, SourceOperator)
        return source


def _of_author(source: SourceOperator, params: Mapping[str, Any]) -> str | None:
    try:
        said: object = source.missing(params)
    except LogioError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        if is_outage(error, source.unavailable):
            raise ExternalUnavailable(cause) from error
        raise ConfigurationError(f"missing() fails: {cause}{authored_frames(error)}") from error
    if said is None or (isinstance(said, str) and said):
        return said
    raise ConfigurationError(f"missing() returned {said!r}; return what is not there in words, or None")


def _what_is_asked(source: SourceOperator) -> str:
    if isinstance(source, TableSource) or (isinstance(source, QuerySource) and source.table is not None):
        return f"table {source.table} of connection {source.connection!r}"
    assert isinstance(source, QuerySource)
    return f"its query of connection {source.connection!r}"


def in_words(seconds: float) -> str:
    """A period, as people say it: ``45 s``, ``12 min``, ``6 h 5 min``."""
    minutes, rest = divmod(int(seconds), _MINUTE)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{minutes} min" if not hours else f"{hours} h {minutes} min"


def _said(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
