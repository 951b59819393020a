"""spark-submit as a child that submits one driver, and what its output says of why it has not."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.managers.cluster_manager import SUBMIT_SECONDS
from airflow_logio.launch.redaction import Redaction

log = logging.getLogger(__name__)
MOST_WORDS = 600
"""Letters of a reason, for people."""
_LOG_LINE = re.compile(r"\d\d/\d\d/\d\d |\s+at |\s+\.\.\. \d|WARNING: |Using Spark's default|\s*$")
_NAMED = re.compile(r"Exception in thread|Caused by|Error:|rm: ")
LOST_WAY = (
    r"SocketException|SocketTimeout|ConnectTimeout|ConnectException|UnknownHost|NoRouteToHost|EOFException"
    r"|[Tt]imed out|[Tt]imeoutException|Connection (?:refused|reset|was closed)"
)
"""Of a service that is not reached."""
_NOT_FOR_NOW = re.compile(
    rf"{LOST_WAY}|SafeModeException|in safe mode|StandbyException|in state standby|RetriableException"
    r"|could only be (?:written|replicated) to|[Nn]o (?:live )?[Dd]ata[Nn]odes?"
)


def run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int | None, str]:
    """The exit code of spark-submit, or None if it was ended here because it took too long; and what it has printed.

    It works in `folder`, with a session of its own. Raises `ConfigurationError` if it cannot be started.
    """
    path = folder / "output"
    code: int | None = None
    try:
        with path.open("wb") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigurationError(f"spark-submit could not be started: {error}") from error
    try:
        code = child.wait(SUBMIT_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("spark-submit takes more than %g s, and is ended", SUBMIT_SECONDS)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return code, path.read_text(errors="replace")


def reason(printed: str, launch: Launch | None = None) -> str:
    """What of an output says why, for people: no secret of the `launch` is in it, and nothing that looks like one."""
    if launch is None:
        redaction = Redaction(())
    else:
        redaction = Redaction((launch.log_url, *launch.connections.values()), launch.payloads, launch.environment)
    return redaction.of(" ".join(_reasons(printed)))[:MOST_WORDS]


def is_for_later(printed: str) -> bool:
    """Whether it says that a service which a submission needs is not reached, or does not serve for now: the same submission
    may succeed later. Lines of logs do not count: they tell of tries that succeeded afterwards, too."""
    return any(map(_NOT_FOR_NOW.search, _reasons(printed)))


def _reasons(printed: str) -> Sequence[str]:
    lines = [line.strip() for line in printed.splitlines() if not _LOG_LINE.match(line)]
    return [line for line in lines if _NAMED.match(line)] or lines[-3:] or printed.splitlines()[-1:]
