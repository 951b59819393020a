"""Parts of sentences: commands of `logio`, to which the code that shows them adds the id of its log; numbers with nouns.

Sentences are made everywhere, also by drivers and for the log, and the id of the log depends on the reader: Airflow's
connection, or what a person gave with ``--log``. So sentences are made without it. A command that can be typed as it is
stands in backticks, with its arguments; the name of a command alone, as in "`logio retry` resumes it", is none.
"""

from __future__ import annotations

import re

DEFAULT_LOG = "logio_default"
"""The connection id that every command takes where none is given."""
_NEEDS_NOTHING = "status|gc|db upgrade|db check"
_NEEDS_A_NAME = "run|retry|stop|fresh|again|days|status|logs|lineage|scale|tend|gc"
_COMPLETE = re.compile(rf"`(logio (?:{_NEEDS_NOTHING}|(?:{_NEEDS_A_NAME}) (?![^`]*--log )[^`]+))`")


def with_log(text: str, log: str | None) -> str:
    """The text with ``--log`` in each complete command; as it is, if `log` is None or the default."""
    return text if log in (None, DEFAULT_LOG) else _COMPLETE.sub(rf"`\1 --log {log}`", text)


def name_log(error: Exception, log: str | None) -> None:
    """The same for what an error says."""
    error.args = tuple(with_log(one, log) if isinstance(one, str) else one for one in error.args)


def counted(many: int, name: str) -> str:
    """``1 event``, ``1,204 events``."""
    return f"{many:,} {name}{'' if many == 1 else 's'}"
