"""Label selectors and field selectors, as the API writes them."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.kubernetes.problems import Object, bad_request

Selector = Callable[[Object], bool]
_OF_A_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_PARTS = re.compile(r",(?![^(]*\))")
_FIELDS = ("metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP")


def selector(labels: str, fields: str) -> Selector:
    """Raises `Problem` if it cannot be read."""
    of_labels = [_of_label(part.strip()) for part in _PARTS.split(labels) if part.strip()]
    of_fields = [_of_field(part.strip()) for part in fields.split(",") if part.strip()]

    def holds(one: Object) -> bool:
        given = one["metadata"].get("labels") or {}
        return all(wanted(given) for wanted in of_labels) and all(wanted(one) for wanted in of_fields)

    return holds


def _of_label(part: str) -> Callable[[dict[str, str]], bool]:
    if found := _OF_A_SET.fullmatch(part):
        key, how, listed = found[1], found[2], {value.strip() for value in found[3].split(",")}
        if how == "in":
            return lambda labels: labels.get(key) in listed
        return lambda labels: labels.get(key) not in listed
    if "!=" in part:
        key, value = (one.strip() for one in part.split("!=", 1))
        return lambda labels: labels.get(key) != value
    if "=" in part:
        key, value = (one.strip() for one in re.split("==?", part, maxsplit=1))
        return lambda labels: labels.get(key) == value
    if part.startswith("!"):
        return lambda labels: part[1:].strip() not in labels
    if re.search(r"[\s()]", part):
        raise bad_request(f"unable to parse requirement: {part}")
    return lambda labels: part in labels


def _of_field(part: str) -> Selector:
    differs = "!=" in part
    path, value = (one.strip() for one in re.split("!=|==?", part, maxsplit=1)) if "=" in part else (part, "")
    if path not in _FIELDS:
        raise bad_request(f"field label not supported: {path}")

    def holds(one: Object) -> bool:
        found = one
        for step in path.split("."):
            found = found.get(step) or {}
        return ((found or "") == value) != differs

    return holds
