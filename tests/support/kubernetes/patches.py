"""How a patch changes an object: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and server-side apply."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.support.kubernetes.problems import Object, bad_request, invalid

Place = tuple[str, ...]
"""The keys that lead to a value which is no object."""


def merged(target: Any, patch: Any) -> Any:
    """JSON merge patch: null removes, objects are merged, all else takes the place of what was there."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


# --- JSON patch -------------------------------------------------------------------------------------------------------


def patched(target: Object, steps: list[Object]) -> Object:
    """JSON patch. Raises `Problem` (422) if a test in it does not hold, or a path is not there."""
    result = copy.deepcopy(target)
    for step in steps:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        try:
            _do(_at(result, way), last, step)
        except (LookupError, ValueError, TypeError):
            name, why = target["metadata"]["name"], f"Invalid value: the path {step['path']} cannot take {step['op']}"
            raise invalid(target["kind"], name, "patch", why) from None
    return result


def _at(target: Any, way: list[str]) -> Any:
    for part in way:
        target = target[int(part)] if isinstance(target, list) else target[part]
    return target


def _do(parent: Any, last: str, step: Object) -> None:
    sort = step["op"]
    if sort == "test":
        if _at(parent, [last]) != step["value"]:
            raise ValueError
        return
    if sort not in {"add", "replace", "remove"}:
        raise bad_request(f"this server does not do {sort} of JSON patch")
    if isinstance(parent, list):
        place = len(parent) if last == "-" else int(last)
        if sort == "add":
            parent.insert(place, step["value"])
        elif sort == "replace":
            parent[place] = step["value"]
        else:
            del parent[place]
    elif sort == "remove":
        del parent[last]
    else:
        if sort == "replace" and last not in parent:
            raise LookupError
        parent[last] = step["value"]


# --- server-side apply ------------------------------------------------------------------------------------------------


def leaves(one: Any, way: Place = ()) -> Iterator[Place]:
    """Where an object says something; a list is one value."""
    if isinstance(one, dict) and one:
        for key, value in one.items():
            yield from leaves(value, (*way, key))
    elif way:
        yield way


def value_at(one: Any, place: Place) -> Any:
    """None if it is not there."""
    for part in place:
        if not isinstance(one, dict) or part not in one:
            return None
        one = one[part]
    return one


def without(one: Object, place: Place) -> Object:
    """A copy that says nothing there; objects that this empties go, too."""
    head, *rest = place
    if head not in one:
        return one
    result = dict(one)
    if rest and isinstance(result[head], dict) and (left := without(result[head], tuple(rest))):
        result[head] = left
    else:
        del result[head]
    return result
