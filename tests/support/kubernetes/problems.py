"""What the API server answers when it refuses: a `Status`, with the reasons and words of Kubernetes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

Object = dict[str, Any]
"""Any object of the API, as JSON."""


class Problem(Exception):
    """A request that is refused."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    @property
    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> Problem:
    named = {"name": name, "kind": resource}
    return Problem(HTTPStatus.NOT_FOUND, "NotFound", f'{resource} "{name}" not found', named)


def no_such_path() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> Problem:
    named = {"name": name, "kind": resource}
    return Problem(HTTPStatus.CONFLICT, "AlreadyExists", f'{resource} "{name}" already exists', named)


def conflict(resource: str, name: str, why: str) -> Problem:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Problem(HTTPStatus.CONFLICT, "Conflict", message, {"name": name, "kind": resource})


def invalid(kind: str, name: str, field: str, why: str) -> Problem:
    """`why` begins with the sort of cause, as `Required value` or `Invalid value: "x"`."""
    details = {"name": name, "kind": kind, "causes": [{"field": field, "message": why}]}
    message = f'{kind} "{name}" is invalid: {field}: {why}'
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def bad_request(message: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def forbidden(resource: str, name: str, why: str) -> Problem:
    named = {"name": name, "kind": resource}
    return Problem(HTTPStatus.FORBIDDEN, "Forbidden", f'{resource} "{name}" is forbidden: {why}', named)


def unsupported(content_type: str, wanted: str) -> Problem:
    message = f"the body was in an unknown format - accepted media types include: {wanted} (was {content_type})"
    return Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)


def expired(asked: int, oldest: int) -> Problem:
    return Problem(HTTPStatus.GONE, "Expired", f"too old resource version: {asked} ({oldest})")
