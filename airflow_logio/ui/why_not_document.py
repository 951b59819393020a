"""Why a record is not among the output of a port, as the page shows it: the terminal's sentences, with events by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from airflow_logio.commands import with_log
from airflow_logio.lineage.record_fates import Met
from airflow_logio.lineage.search_limits import SearchLimits
from airflow_logio.lineage.why_not import PortSearch, WhyNot
from airflow_logio.run_report.why_not_text import found_events, met_said, named, search_said
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.rules.authored_ports import AuthoredPorts
from airflow_logio.ui.error_texts import error_text
from airflow_logio.ui.found_events import MOST_FOUND
from airflow_logio.ui.lineage_documents import page_port

LIMITS = SearchLimits(seconds=30.0, size=1536 * 2**20, found=MOST_FOUND)
"""Of all searches for one answer: it is not continued. So long a person watches how it grows, and most proxies wait for an
answer at least twice as long. The bytes are read, not held: in each second as many as steps of searches by values may."""
MOST_MET = 20
"""Events of one port of which it is said what became of them, as in the terminal."""
MOST_SEARCHES = 50
MOST_NAMED = 100
"""Events of one port, and events that were made of one."""


def why_not_document(answer: WhyNot, seconds: float, log: str | None, *, errors_shown: bool) -> dict[str, Any]:
    """The answer, or what is known of it after so many seconds. `log` is the connection id of the log, for commands in
    sentences."""
    ports = answer.ports
    return {
        "is_there": answer.is_there,
        "searches": [_search(one, ports, log, errors_shown) for one in answer.searches[:MOST_SEARCHES]],
        "searches_in_all": len(answer.searches),
        "notes": [with_log(note, log) for note in answer.notes[:MOST_SEARCHES]],
        "notes_in_all": len(answer.notes),
        "seconds": round(seconds, 3),
    }


def _search(one: PortSearch, ports: AuthoredPorts, log: str | None, errors_shown: bool) -> dict[str, Any]:
    found = found_events(one)
    return {
        "said": with_log(search_said(one, ports), log),
        "events": _links(found),
        "events_in_all": len(found),
        "met": [_met(met, one, ports, log, errors_shown) for met in one.met[:MOST_MET]],
        "met_in_all": len(one.met),
        "is_met_cut": one.is_met_cut,
    }


def _met(met: Met, search: PortSearch, ports: AuthoredPorts, log: str | None, errors_shown: bool) -> dict[str, Any]:
    shown = replace(met, error=error_text(met.error, shown=errors_shown) or "", made=met.made[:MOST_NAMED])
    return {
        **_links([named(met, search)])[0],
        "said": with_log(met_said(shown, search, ports), log),
        "made": _links(met.made),
    }


def _links(events: Iterable[EventNode]) -> list[dict[str, Any]]:
    """Events as the page names and opens them."""
    return [{"port": page_port(one), "event": one.event_id} for one in islice(events, MOST_NAMED)]
