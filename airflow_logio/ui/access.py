"""Who may see what on the page, what a browser may post to it, and what stands in the place of hidden texts.

In Airflow, the auth manager decides by DAG (`in_airflow`); `logio ui` decides by the token of the person that started it.
"""

from __future__ import annotations

import hmac
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, HTTPException, Request

from airflow_logio.launch.processes import this_person
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.store.records.run_records import RunKey

log = logging.getLogger(__name__)


# --- who asks ---------------------------------------------------------------------------------------------------------


class Access(ABC):
    """Authentication and authorization of one web application."""

    @abstractmethod
    async def user(self, request: Request) -> Any:
        """The user that asks, as the other methods take it. Raises `HTTPException` 401 for everyone else."""

    @abstractmethod
    def may_read(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see the runs of a DAG."""

    @abstractmethod
    def may_read_output(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see what the drivers of a DAG's runs have printed."""

    @abstractmethod
    def may_read_data(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see the records that a DAG's runs have processed."""

    @abstractmethod
    def may_change(self, user: Any, dag_id: str) -> bool:
        """Whether this user may stop, scale or retry the runs of a DAG, or give them up."""

    def may_retry(self, user: Any, dag_id: str) -> bool:
        """Whether this user may have groups of a DAG's runs launched again."""
        return self.may_change(user, dag_id)

    @abstractmethod
    def name_of(self, user: Any) -> str:
        """The user's name, as it is written beside what was done."""

    @abstractmethod
    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        """Write down the user and the action before it is done. If this raises, it is not done."""

    @abstractmethod
    def readable(self, user: Any) -> Collection[str] | None:
        """The DAGs whose runs this user may see; None for all."""


class TokenAccess(Access):
    """One token opens everything: it belongs to the person who can read the log anyway."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def user(self, request: Request) -> Any:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            raise HTTPException(401, "open the address that `logio ui` has printed")
        return "owner"

    def may_read(self, user: Any, dag_id: str) -> bool:
        return True

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return True

    def may_read_data(self, user: Any, dag_id: str) -> bool:
        return True

    def may_change(self, user: Any, dag_id: str) -> bool:
        return True

    def name_of(self, user: Any) -> str:
        return this_person()

    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        log.warning("%s asks on the page: %s run %s, %s", this_person(), action, run, dict(asked))

    def readable(self, user: Any) -> Collection[str] | None:
        return None


# --- what is posted ---------------------------------------------------------------------------------------------------

LONGEST = 16_384
"""Bytes of a body."""
LONGEST_GIVEN = 250
"""Characters of a name, a reason or a value in it."""
_OF_THE_PAGE = ("same-origin", "none")
NO_NUL = r"^[^\x00]*$"
"""What PostgreSQL takes as text."""
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_GIVEN, pattern=NO_NUL)]
T = TypeVar("T")


class Posted(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of what may be posted: no other fields than those that are read."""

    def told(self) -> dict[str, Any]:
        """Its fields, for the audit log: those that say something."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


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
    """FastAPI's dependency for the body of a POST: it is read once the user is known."""

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


# --- texts that not everyone may read ---------------------------------------------------------------------------------

DATA_HIDDEN = "an Input Set, whose id only who may read the data of this DAG may read"
"""What stands in the place of where a driver has failed, if that is the id of an Input Set."""
LONGEST_TEXT = 4000
"""Characters of an error."""
_NAMED_SET = re.compile(r"""Input Set ('(?:[^'\\]|\\.)*('|\\?\Z)|"(?:[^"\\]|\\.)*("|\\?\Z))""", re.DOTALL)
"""An Input Set with its id, as `FailurePoint` writes it: in quotes of either kind, as Python does."""


def names_input_set(text: str | None) -> bool:
    """Whether a place, as `FailurePoint` writes it, has the id of an Input Set in it; how many there are is no id."""
    return _NAMED_SET.search(text or "") is not None


def without_ids(place: str) -> str:
    """A place without the ids of Input Sets; everything else stays."""
    return _NAMED_SET.sub("an Input Set", place)


def error_text(text: str | None, *, shown: bool) -> str | None:
    """The text, shortened; with `shown` False, only that there is one."""
    return shortened(text) if shown or not text else HIDDEN


def shortened(text: str | None) -> str | None:
    """An error as the page shows it: its end is the author's line, its beginning says where it was."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_TEXT:,} characters left out ...\n{text[-half:]}"
