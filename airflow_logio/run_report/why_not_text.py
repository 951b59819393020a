"""Why a record is not among the output, in sentences and as JSON: of `logio lineage --why-not` and of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_logio.commands import counted
from airflow_logio.lineage.record_fates import Fate, Met
from airflow_logio.lineage.record_values import Sought, Stretch
from airflow_logio.lineage.search_limits import SearchedSoFar
from airflow_logio.lineage.why_not import PortSearch, WhyNot
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.result import EventNode

MOST_EVENTS = 20
"""Events of one port that are told of one by one."""


def why_not_lines(answer: WhyNot) -> Iterator[str]:
    """From the port that was asked for towards the sources."""
    ports = answer.ports
    for one in answer.searches:
        port = ports.seen(one.port)
        numbers = list(dict.fromkeys(_number(event, port) for event in found_events(one)))
        events = ", ".join(numbers[:MOST_EVENTS]) + (", ..." if len(numbers) > MOST_EVENTS else "")
        yield search_said(one, ports, f": {events}")
        for met in one.met[:MOST_EVENTS]:
            yield f"  event {_number(named(met, one), port)}{met_said(met, one, ports)}"
        if len(one.met) > MOST_EVENTS:
            yield f"  ... and {len(one.met) - MOST_EVENTS:,} more"
    yield from answer.notes


def named(met: Met, search: PortSearch) -> EventNode:
    """The event as its author numbers it; as the log does, if retention has removed it meanwhile."""
    return search.named.get(met.event_id) or EventNode(search.port, met.event_id)


def found_events(search: PortSearch) -> list[EventNode]:
    """The events that hold such records, as their author numbers them: parts of one event are one."""
    return list(dict.fromkeys(search.named[number] for number in search.found if number in search.named))


def _number(event: EventNode, port: Port) -> str:
    """The number alone, where the line names its port."""
    return str(event.event_id) if event.port == port and event.slot is None else str(event)


def searched_said(so_far: SearchedSoFar) -> str:
    """``clean.out: 12,400 of 1,000,000 events``."""
    slot = "" if so_far.slot is None else f" in slot {so_far.slot}"
    return f"{so_far.port}{slot}: {so_far.searched:,} of {counted(so_far.sent, 'event')}"


def why_not_json(answer: WhyNot) -> dict[str, Any]:
    return {
        "is_there": answer.is_there,
        "searches": [
            {
                "port": str(one.port),
                "slots": one.slots,
                "values": {name: str(value) for name, value in one.values.items()},
                "events": {str(number): records for number, records in one.found.items()},
                "named": {str(number): str(event) for number, event in one.named.items()},
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


def search_said(one: PortSearch, ports: AuthoredPorts, events: str = "") -> str:
    """What was found on a port; `events` names those that hold such records."""
    searched = _searched(one) + "".join(
        f"; {operator} does not say what {name} depends on" for name, operator in one.not_followed.items()
    )
    port = ports.told(one.port, one.slots)
    if not one.found:
        return f"{port}: no record has {told(one.values)} ({searched})"
    many = counted(sum(one.found.values()), "record")
    return f"{port}: {many} with {told(one.values)}, in {counted(len(one.found), 'event')}{events} ({searched})"


def _searched(one: PortSearch) -> str:
    if one.is_cut:
        return f"only the newest {one.searched:,} of {counted(one.sent, 'event')} searched"
    gone = f", the records of {one.sent - one.searched:,} are not in the log" if one.sent > one.searched else ""
    large = ", of large ones only the first records" if one.is_partly else ""
    return f"{counted(one.searched, 'event')} searched{gone}{large}"


def met_said(met: Met, search: PortSearch, ports: AuthoredPorts) -> str:
    """What has become of an event of a search, after its name."""
    operator = ports.told_operator(met.operator)
    inset = "" if met.inset_id is None else f", Input Set {met.inset_id} of {operator}"
    return f"{inset}: {_fate(met, search, operator)}"


def _fate(met: Met, search: PortSearch, operator: str) -> str:
    match met.fate:
        case Fate.UNUSED_YET:
            return f"{operator} has not processed it yet"
        case Fate.WAITING:
            return "it is not complete, or not generated yet"
        case Fate.ASIDE:
            return f"it is quarantined: {met.error} (`logio status` shows it, `logio retry` puts it back)"
        case Fate.IGNORED:
            return f"no Input Set of {operator} uses it"
        case Fate.LEFT_OUT:
            return _left_out(met, search, operator)
        case Fate.MADE_SINCE:
            made = _made(met)
            return f"it was generated after the search had begun, and made {made}, which was not searched: ask again"


def _left_out(met: Met, search: PortSearch, operator: str) -> str:
    if not met.made and not met.is_output_known:
        return "it was generated; it made no event on the way to the port, or none that is in the log any more"
    if not met.made:
        return f"it was generated, and made no event: {operator} has left it out"
    made = f"it was generated and made {_made(met)}"
    if search.not_followed:  # these records may be of other values
        return f"{made}, without a record of all the values"
    if not met.is_output_known:
        return f"{made}; not all records behind it were searched, and none of those that were is the one"
    return f"{made}, without such a record: {operator} has left it out"


def _made(met: Met) -> str:
    """The events that were made; with their ports, where there are several."""
    several = len({(event.port, event.slot) for event in met.made}) > 1
    return "event " + ", ".join(str(event) if several else str(event.event_id) for event in met.made)


def _met_json(met: Met) -> dict[str, Any]:
    return {
        "event_id": met.event_id,
        "operator": met.operator,
        "inset_id": met.inset_id,
        "fate": met.fate.value,
        "made": [str(event) for event in met.made],
        "error": met.error,
    }
