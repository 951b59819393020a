"""Why a record is not among the output, in sentences and as JSON: of `logio lineage --why-not` and of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_logio.run_report.counted import counted
from airflow_logio.runtime.figures.record_values import Sought, Stretch
from airflow_logio.runtime.figures.why_not import Fate, Met, PortSearch, WhyNot

MOST_EVENTS = 20
"""Events of one port that are told of one by one."""


def why_not_lines(answer: WhyNot) -> Iterator[str]:
    """From the port that was asked for towards the sources."""
    for one in answer.searches:
        events = ", ".join(map(str, list(one.found)[:MOST_EVENTS])) + (", ..." if len(one.found) > MOST_EVENTS else "")
        yield search_said(one, f": {events}")
        for met in one.met[:MOST_EVENTS]:
            yield f"  event {met.event_id}{met_said(met, one)}"
        if len(one.met) > MOST_EVENTS:
            yield f"  ... and {len(one.met) - MOST_EVENTS:,} more"
    yield from answer.notes


def why_not_json(answer: WhyNot) -> dict[str, Any]:
    return {
        "is_there": answer.is_there,
        "searches": [
            {
                "port": str(one.port),
                "values": {name: str(value) for name, value in one.values.items()},
                "events": {str(number): records for number, records in one.found.items()},
                "searched": one.searched,
                "sent": one.sent,
                "not_followed": dict(one.not_followed),
                "met": [_met_json(met) for met in one.met],
            }
            for one in answer.searches
        ],
        "notes": list(answer.notes),
    }


def told(values: Sought) -> str:
    """``store_id=367 and transaction_timestamp in 2017-08-03T22:00 to 2017-08-03T23:00``."""
    return " and ".join(
        f"{name}{' in ' if isinstance(value, Stretch) else '='}{value}" for name, value in values.items()
    )


def search_said(one: PortSearch, events: str = "") -> str:
    """What was found on a port; `events` names those that hold such records."""
    searched = _searched(one) + "".join(
        f"; {operator} does not say what {name} depends on" for name, operator in one.not_followed.items()
    )
    if not one.found:
        return f"{one.port}: no record has {told(one.values)} ({searched})"
    many = counted(sum(one.found.values()), "record")
    return f"{one.port}: {many} with {told(one.values)}, in {counted(len(one.found), 'event')}{events} ({searched})"


def _searched(one: PortSearch) -> str:
    if one.is_cut:
        return f"only the newest {one.searched:,} of {counted(one.sent, 'event')} searched"
    gone = f", the records of {one.sent - one.searched:,} are not in the log" if one.sent > one.searched else ""
    large = ", of large ones only the first records" if one.is_partly else ""
    return f"{counted(one.searched, 'event')} searched{gone}{large}"


def met_said(met: Met, search: PortSearch) -> str:
    """What has become of an event of a search, after its name."""
    inset = "" if met.inset_id is None else f", Input Set {met.inset_id} of {met.operator}"
    return f"{inset}: {_fate(met, search)}"


def _fate(met: Met, search: PortSearch) -> str:
    match met.fate:
        case Fate.UNUSED_YET:
            return f"{met.operator} has not processed it yet"
        case Fate.WAITING:
            return "it is not complete, or not generated yet"
        case Fate.ASIDE:
            return f"it is quarantined: {met.error} (`logio status` shows it, `logio retry` puts it back)"
        case Fate.IGNORED:
            return f"no Input Set of {met.operator} uses it"
        case Fate.LEFT_OUT:
            return _left_out(met, search)
        case Fate.MADE_SINCE:
            made = ", ".join(map(str, met.made))
            return (
                f"it was generated after the search had begun, and made event {made}, which was not searched: ask again"
            )


def _left_out(met: Met, search: PortSearch) -> str:
    if not met.made:
        return f"it was generated, and made no event: {met.operator} has left it out"
    made = f"it was generated and made event {', '.join(map(str, met.made))}"
    if search.not_followed:  # these records may be of other values
        return f"{made}, without a record of all the values"
    if not search.is_output_known:
        return f"{made}; not all records behind it are in the log, and none of those that are is the one"
    return f"{made}, without such a record: {met.operator} has left it out"


def _met_json(met: Met) -> dict[str, Any]:
    return {
        "event_id": met.event_id,
        "operator": met.operator,
        "inset_id": met.inset_id,
        "fate": met.fate.value,
        "made": list(met.made),
        "error": met.error,
    }
