"""Why a group has stopped, as one sentence and the line of the author's own code, from the error that the log has of it.

The whole error is for the panel of the group. Here is what fits into a box of the graph, and what a person looks for first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.status_records import GroupStatus

LONGEST_SAID = 300
HIDDEN = "only who may read the logs of this DAG's tasks may read this"
"""What stands in the place of an error text."""
STOPPED = (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)
"""States of a group that have a cause, the most pressing first."""
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_PLACE = re.compile(rf"pipeline (?:{_QUOTED}), operator (?:{_QUOTED})(?:, (?:[^:'\"]|{_QUOTED})*)?: ")
"""Where in the pipeline it was, as `OperatorFailed` writes it; what the author's code has raised stands behind it."""
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARIES = re.compile(
    r"[/\\](site-packages|dist-packages|pyspark|lib[/\\]python\d\.\d+|python\d+\.zip)[/\\]|^<|\.p(?:yx|xi|xd)$"
)
"""Also what Cython has compiled: such a frame has no folder."""
_OF_WORKER = re.compile(r"An exception was thrown from the Python worker|PythonException: Traceback")
"""How Spark begins to tell of an error in a function on an executor; the traceback of that follows."""
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
"""What a traceback ends with."""
_CODE = re.compile(r".*/code/")
"""A driver's folder, in which it has the code of the run."""
_LAST_CAUSE = "\nlast cause: "
"""Before it, a group whose budget is spent has the causes of all its recoveries."""
_SPENT = " (it was recovered too often)"


class Cause(NamedTuple):
    said: str
    """What was raised, in one line, without where in the input that was."""
    place: str
    """File, line and function of the author's code; empty where the error is not from there."""

    def __str__(self) -> str:
        return f"{self.said}, {self.place}" if self.place else self.said


def cause_of(status: GroupStatus, *, shown: bool = True) -> Cause | None:
    """Why the group has stopped; None if it has not. `shown`: to a reader who may read texts of errors."""
    if status.state not in STOPPED:
        return None
    if status.error:
        return brief(status.error) if shown else Cause(HIDDEN, "")
    return Cause("it was asked to halt" if status.state is GroupState.HALTED else f"it is {status.state.value}", "")


def most_pressing(groups: Sequence[GroupStatus]) -> Sequence[GroupStatus]:
    """Those that have stopped, the most pressing first."""
    stopped = (group for group in groups if group.state in STOPPED)
    return sorted(stopped, key=lambda group: STOPPED.index(group.state))


def brief(error: str) -> Cause:
    """The cause in an error as the log has it, the last one if it has several."""
    _, spent, last = error.rpartition(_LAST_CAUSE)
    frames = _FRAME.search(last)
    head = last[: frames.start()] if frames else last
    raised = _RAISED.findall(last) if _OF_WORKER.search(head) else ()
    said = raised[-1] if raised else _first_line(_PLACE.split(head, maxsplit=1)[-1]) or _first_line(error)
    cut = said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}..."
    return Cause(cut + (_SPENT if spent else ""), _own_line(last))


def _first_line(text: str) -> str:
    """With the second one where the first only names what was raised."""
    first, _, others = text.strip().partition("\n")
    second = others.strip().partition("\n")[0].rstrip() if first.rstrip().endswith(":") else ""
    return " ".join(filter(None, (first.rstrip(), second)))


def _own_line(error: str) -> str:
    """The innermost frame that is of no library."""
    own = [frame for frame in _FRAME.findall(error) if not _LIBRARIES.search(frame[0])]
    if not own:
        return ""
    path, line, function = own[-1]
    shipped = _CODE.sub("", path)
    file = shipped if shipped != path else "/".join(path.rsplit("/", 2)[-2:])
    return f"{file}:{line}, in {function}"
