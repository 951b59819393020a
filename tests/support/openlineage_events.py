"""Events of OpenLineage as a file transport writes them: read, and held to the standard's schemas and to our own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
from referencing import Registry, Resource

import airflow_logio
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.status_records import PortProgress

STANDARD = Path(__file__).parent / "openlineage_schemas"
OURS = Path(airflow_logio.__file__).parent / "openlineage" / "LogioRunFacet.json"
CORE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
UNTYPED = "#/$defs/BaseFacet", "#/$defs/RunFacet", "#/$defs/JobFacet"
"""What Airflow's own facets give as their schema: that of any facet."""

Event = dict[str, Any]


def schemas() -> Registry[Any]:
    found = [json.loads(path.read_text()) for path in (*STANDARD.rglob("*.json"), OURS)]
    return Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in found)


def events_of(*files: Path) -> list[Event]:
    """The events in files, each checked, in their order there."""
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("\n")]  # the others are being written
    registry = schemas()
    for event in events:
        _check({"$ref": f"{CORE}#/$defs/RunEvent"}, event, registry)
        for name, facet in _facets(event):
            url = facet["_schemaURL"]
            document = url.partition("#")[0]
            assert document in registry or not url.startswith("https://openlineage.io/spec/facets"), (name, url)
            if document in registry:
                _check({"$ref": url}, facet, registry)
            else:
                assert name.startswith("airflow"), (name, url)
    return events


def _check(schema: Mapping[str, Any], value: Any, registry: Registry[Any]) -> None:
    validator = Draft202012Validator(schema, registry=registry, format_checker=FormatChecker())
    errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    assert not errors, errors


def _facets(event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
    holders = [event["run"], event["job"], *event.get("inputs", ()), *event.get("outputs", ())]
    for holder in holders:
        for kind in ("facets", "inputFacets", "outputFacets"):
            yield from (holder.get(kind) or {}).items()


def datasets(event: Event, side: str) -> dict[tuple[str, str], int | None]:
    """(namespace, name) → records, None if they are not counted; `side` is ``inputs`` or ``outputs``."""
    facet = {"inputs": ("inputFacets", "inputStatistics"), "outputs": ("outputFacets", "outputStatistics")}[side]
    return {
        (one["namespace"], one["name"]): one.get(facet[0], {}).get(facet[1], {}).get("rowCount")
        for one in event.get(side, ())
    }


def counted(ports: list[PortProgress], port: str, direction: str) -> int:
    """Records of a port, as the log has counted them."""
    operator, name = port.split(".")
    return sum(row.records for row in ports if (row.port, row.direction) == (Port(operator, name), direction))
