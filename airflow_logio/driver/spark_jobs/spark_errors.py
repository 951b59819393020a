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


_OF_SHUFFLES = re.compile(
    r"indeterminate output was failed and retried|indeterminate results from old attempt"
    r"|[Cc]annot rollback|[Rr]ollback failed"
    r"|has (?:failed|exceeded|been resubmitted for) the maximum allowable (?:number of times|total stage attempts)"
)
"""What Spark's scheduler says of a job when executors were lost with what tasks had shuffled: others have read some of it,
and it came out differently when it was made again; or it was lost again each time."""


def shuffle_lost(error: BaseException) -> str | None:
    """What Spark could not make again, after it had lost an executor, as it was; None if a job has failed for another reason.

    No operator is to blame, and Spark does not try again: who has asked for the job has to.
    """
    text = str(error)
    found = _OF_SHUFFLES.search(text) if "Job aborted" in text else None
    return None if found is None else found[0]


def lost_on_the_way(error: BaseException) -> str | None:
    """What a job has lost that is there again later: executors, their processes or connections, or what was shuffled; None if
    it has failed for another reason. In Spark's words, because it has nothing else."""
    if lost := shuffle_lost(error):
        return lost
    found = _OF_EXECUTORS.search(str(error))
    return None if found is None else found[0].strip()


def shortened(error: BaseException) -> str:
    """The beginning, and the end, where a Python worker says what was raised; without the frames of the JVM."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[:3], "...", *lines[3 - MOST_LINES :]])
