"""Every route of a web application, so that a test can walk them all."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute


def routes(app: Any, **values: str) -> list[tuple[str, str]]:
    """(GET or POST, path with `values` filled in). Anything that is no plain route of one of these methods fails."""
    assert isinstance(app, FastAPI)
    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} may be open to everyone: a mount inherits no dependencies"
        assert route.methods in ({"GET"}, {"POST"}), route
        found.append((*route.methods, route.path.format(**values)))
    assert found
    return [(str(method), path) for method, path in found]
