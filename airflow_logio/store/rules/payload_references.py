"""References into the payload store, as EVENT_DATA holds them beside an empty body (design D6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_logio.errors import LogInconsistent

_FORM = re.compile(r"(?P<path>[^#]+)#(?P<checksum>[0-9a-f]{8})-(?P<size>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A file of the payload store: its path below the root, the CRC-32 and the number of its bytes.

    Written ``path#checksum-size``. It does not say where the root is: the root may hold credentials, and may move.
    """

    path: str
    checksum: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}#{self.checksum:08x}-{self.size}"

    @classmethod
    def parse(cls, where: str, text: str) -> Reference:
        """Raises `LogInconsistent`, naming `where` it was found."""
        own = cls.own(text)
        if own is None:
            raise LogInconsistent(f"the reference {text!r} of {where} does not point into a payload store")
        return own

    @classmethod
    def own(cls, text: str) -> Reference | None:
        """The reference that `text` is; None if it is not one of ours."""
        form = _FORM.fullmatch(text)
        if form is None or ".." in form["path"].split("/") or form["path"].startswith("/"):
            return None
        return cls(form["path"], int(form["checksum"], 16), int(form["size"]))


def size_of_payload(text: str) -> int:
    """The bytes of the file that a reference names; none if it is not one of ours."""
    reference = Reference.own(text)
    return 0 if reference is None else reference.size
