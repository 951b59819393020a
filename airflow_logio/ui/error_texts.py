"""Who reads error texts, and ids of Input Sets: they come from the author's code and its data."""

from __future__ import annotations

import re

HIDDEN = "only who may read the logs of this DAG's tasks may read this"
"""What stands in the place of an error text."""
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


def shortened(text: str | None) -> str | None:
    """An error as the page shows it: its end is the author's line, its beginning says where it was."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - LONGEST_TEXT:,} characters left out ...\n{text[-half:]}"


def error_text(text: str | None, *, shown: bool) -> str | None:
    """The text, shortened; with `shown` False, only that there is one."""
    return shortened(text) if shown or not text else HIDDEN
