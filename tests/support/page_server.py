"""`logio ui` as a process of its own, as a person starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def page_of(log_url: str, *arguments: str, noted: list[str] | None = None) -> Iterator[str]:
    """The address that it prints. `noted` gets what else it prints, at its end and as one line: who has done what."""
    command = [sys.executable, "-m", "airflow_logio.cli", "ui", *arguments]
    environment = {**os.environ, "LOGIO_URL": log_url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
            if noted is not None:
                noted.append(" ".join(process.stdout.read().split()))
