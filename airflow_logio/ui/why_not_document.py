"""Why a record is not among the output of a port, as the page shows it: the terminal's sentences, with events by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from airflow_logio.commands import with_log
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.why_not_text import met_said, search_said
from airflow_logio.runtime.figures.event_search import SearchLimits
from airflow_logio.runtime.figures.lineage_records import Elsewhere
from airflow_logio.runtime.figures.why_not import Met, PortSearch, WhyNot, why_not
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run
from airflow_logio.ui.error_texts import error_text
from airflow_logio.ui.found_events import MOST_FOUND, MOST_SECONDS, port_names

LIMITS = SearchLimits(seconds=MOST_SECONDS, size=256 * 2**20, found=MOST_FOUND)
"""Of all searches for one answer: it is not continued."""
MOST_MET = 20
"""Events of one port of which it is said what became of them, as in the terminal."""
MOST_SEARCHES = 50
MOST_NAMED = 100
"""Events of one port, and events that were made of one."""


def why_not_document(
    store: LogStore,
    run: Run,
    port: str,
    where: Mapping[str, str],
    load: Elsewhere | None,
    *,
    log: str | None,
    errors_shown: bool,
    limits: SearchLimits = LIMITS,
) -> dict[str, Any]:
    """`log` is the connection id of the log, for commands in sentences. Raises as `why_not`."""
    begun = time.monotonic()
    answer = why_not(store, run, port, where, load, limits)
    names = _Names(run, answer)
    return {
        "is_there": answer.is_there,
        "searches": [_search(one, names, log, errors_shown) for one in answer.searches[:MOST_SEARCHES]],
        "searches_in_all": len(answer.searches),
        "notes": [with_log(note, log) for note in answer.notes[:MOST_SEARCHES]],
        "notes_in_all": len(answer.notes),
        "seconds": round(time.monotonic() - begun, 3),
    }


class _Names:
    """Ports of the log as the page names them."""

    def __init__(self, run: Run, answer: WhyNot) -> None:
        places = {place for one in answer.searches for place in (one.port, one.output) if place is not None}
        self._names = dict(zip(places, port_names(run, places), strict=True))

    def events(self, place: Port, ids: Iterable[int]) -> list[dict[str, Any]]:
        return [{"port": self._names[place], "event": number} for number in list(ids)[:MOST_NAMED]]


def _search(one: PortSearch, names: _Names, log: str | None, errors_shown: bool) -> dict[str, Any]:
    return {
        "said": with_log(search_said(one), log),
        "events": names.events(one.port, one.found),
        "events_in_all": len(one.found),
        "met": [_met(met, one, names, log, errors_shown) for met in one.met[:MOST_MET]],
        "met_in_all": len(one.met),
        "is_met_cut": one.is_met_cut,
    }


def _met(met: Met, search: PortSearch, names: _Names, log: str | None, errors_shown: bool) -> dict[str, Any]:
    shown = replace(met, error=error_text(met.error, shown=errors_shown) or "", made=met.made[:MOST_NAMED])
    return {
        **names.events(search.port, [met.event_id])[0],
        "said": with_log(met_said(shown, search), log),
        "made": [] if search.output is None else names.events(search.output, met.made),
    }
