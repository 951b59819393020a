"""A process that hangs shows where: what a failed end-to-end test is explained by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stacks.sitecustomize import SHOW
from tests.support.waiting import eventually

STACKS = Path(__file__).parents[1] / "support" / "stacks"
WAITING = """
import asyncio
async def waits_for_an_answer():
    await asyncio.get_running_loop().create_future()
async def main():
    task = asyncio.create_task(waits_for_an_answer())
    await asyncio.sleep(0)
    print("ready", flush=True)
    {rest}
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ("await task", ["in select", "waits_for_an_answer"]),
        ("hang = __import__('time').sleep(300)", ["in main"]),
    ],
    ids=["an event loop that waits", "one that is blocked"],
)
def test_a_process_shows_its_stacks(rest: str, shown: list[str], tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    environment = {**os.environ, "PYTHONPATH": str(STACKS), "LOGIO_STACKS": str(file)}
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(rest=rest)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"

        def shows() -> bool:
            process.send_signal(SHOW)  # again: it may not have come to where it hangs yet
            return all(one in file.read_text() for one in shown)

        eventually(shows, what="it shows its stacks", every=0.2)
        assert process.poll() is None, "and continues"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
