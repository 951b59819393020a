"""What a browser posts to the page: JSON that only the page itself can have sent, read after it is known who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, HTTPException, Request

LONGEST = 16_384
"""Bytes of a body."""
LONGEST_TEXT = 250
"""Characters of a name, a reason or a value in it."""
_OF_THE_PAGE = ("same-origin", "none")
NO_NUL = r"^[^\x00]*$"
"""What PostgreSQL takes as text."""
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT, pattern=NO_NUL)]
T = TypeVar("T")


async def posted_bytes(request: Request) -> bytes:
    """The body of a POST. Raises `HTTPException` 403, 413 or 415.

    A page of another site can send a form with a person's cookie, and no JSON: for that a browser asks first, and is not
    answered. Browsers also say which site a request comes from.
    """
    if request.headers.get("sec-fetch-site", "none") not in _OF_THE_PAGE:
        raise HTTPException(403, "this comes from another site")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON, and say so: Content-Type: application/json")
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > LONGEST:
            raise HTTPException(413, f"send at most {LONGEST:,} bytes")
    return bytes(found)


def posted_after(user: Callable[..., Any]) -> Callable[..., Any]:
    """FastAPI's dependency for the body of a POST: it is read once it is known who asks."""

    asked, read = Depends(user), Depends(posted_bytes)

    async def body(_who: Any = asked, raw: bytes = read) -> bytes:  # in this order
        return raw

    return body


def decoded(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`. Raises `HTTPException` 422, with what is wrong."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind, strict=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HTTPException(422, str(error)) from error


class Posted(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of what may be posted: no other fields than those that are read."""

    def told(self) -> dict[str, Any]:
        """Its fields, for the audit log: those that say something."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
