"""What Spark says of a job that has failed, as short as it can be understood."""

from __future__ import annotations

import errno
import os
import re

MOST_LINES = 12
_OF_STORES = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EROFS,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.ETIMEDOUT,
)
"""Errors of a shared file system that is full or unavailable, and of nothing that an author's function computes."""


def store_fault(error: BaseException) -> str | None:
    """What a task has found of a file system that is full or unavailable; None if it has failed for another reason.

    Spark has the errors of tasks as text only: of Python with a number, of the JVM in the words of the system.
    """
    text = str(error)
    found = (number for number in _OF_STORES if any(words in text for words in _said(number)))
    return next((os.strerror(number) for number in found), None)


def _said(number: int) -> tuple[str, str, str]:
    words = os.strerror(number)
    return f"[Errno {number}]", f"({words})", f"IOException: {words}"


_OF_EXECUTORS = re.compile(
    r"ExecutorLostFailure|FetchFailed|MetadataFetchFailed|Python worker (?:exited unexpectedly|failed to connect back)"
    r"|\b(?:java\.net\.\w*(?:Connect|Socket|UnknownHost|NoRouteToHost)\w*Exception|java\.io\.EOFException)\b"
    r"|\bConnection(?:Refused|Reset|Aborted)?Error\b|\bBrokenPipeError\b|\bTimeoutError\b"
    r"|Connection (?:refused|reset by peer)|\bJob \d+ cancelled\b"
)
"""What Spark says of a job whose executors, or connections, were lost; or that somebody has cancelled."""


def lost_on_the_way(error: BaseException) -> str | None:
    """What a job has lost that is there again later: executors, their processes or connections; None if it has failed for
    another reason. In Spark's words, because it has nothing else."""
    found = _OF_EXECUTORS.search(str(error))
    return None if found is None else found[0].strip()


def shortened(error: BaseException) -> str:
    """The beginning, and the end, where a Python worker says what was raised; without the frames of the JVM."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[:3], "...", *lines[3 - MOST_LINES :]])
