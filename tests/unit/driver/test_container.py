"""What a driver has in a container: a folder, and its output in two places to the last line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from airflow_logio.driver.on_node.container import PREFIX
from airflow_logio.launch.driver_log import LOG_NAME

PROGRAM = """
import os, sys, threading
from pathlib import Path
from airflow_logio.driver.last_steps import before_exit, exit_process
from airflow_logio.driver.on_node.container import Container

print("before", flush=True)
container = Container.entered()
assert Path.cwd() == container.folder
"""
ROOT = Path(__file__).parents[3]


def started(folder: Path, program: str, *, first: str = "", **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", first + PROGRAM + program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables},
        start_new_session=True,
    )


def test_all_that_a_process_prints_is_shown_to_its_last_word(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        """
print("of Python")
os.system("echo of a child")
os.write(2, b"of a library\\n")
print("x" * 100_000)
before_exit(lambda: print("of a last step"))
threading.Thread(target=lambda: (sys.stderr.write("last"), exit_process(7))).start()
threading.Event().wait()
""",
    )
    output, _ = process.communicate(timeout=60)
    lines = [*output.decode().splitlines()]
    assert lines == ["before", "of Python", "of a child", "of a library", "x" * 100_000, "lastof a last step"]
    assert process.returncode == 7
    assert not list(tmp_path.iterdir()), "the folder is gone"


def test_a_manager_that_takes_no_output_holds_nothing_up(tmp_path: Path) -> None:
    """Its pipe is full: nothing reads it. The file has all, and the process ends."""
    process = started(
        tmp_path,
        f"""
for line in range(5_000):
    print("x" * 100)
sys.stdout.flush()
Path("{tmp_path}/size").write_text(str(Path("{LOG_NAME}").stat().st_size))
exit_process(0)
""",
    )
    try:
        assert process.wait(timeout=60) == 0
        assert (tmp_path / "size").read_text() == str(5_000 * 101)
        assert not list(tmp_path.glob(f"{PREFIX}*"))
    finally:
        process.kill()
        process.communicate()


def test_a_manager_that_has_gone_ends_nothing(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        """
while not Path("../closed").exists():
    threading.Event().wait(0.01)
for _ in range(3):
    print("to nobody")
    threading.Event().wait(0.3)
exit_process(0)
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    process.stdout.close()
    (tmp_path / "closed").touch()
    assert process.wait(timeout=60) == 0


def test_a_killed_process_leaves_its_folder_to_the_manager(tmp_path: Path) -> None:
    process = started(tmp_path, 'print("seen", flush=True)\nthreading.Event().wait()')
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == [b"before\n", b"seen\n"]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    (left,) = tmp_path.glob(f"{PREFIX}*")
    assert left.stat().st_mode & 0o777 == 0o700 and (left / LOG_NAME).stat().st_mode & 0o777 == 0o600


def test_where_the_working_folder_cannot_be_written_another_one_is_found(tmp_path: Path) -> None:
    for name in ("removed", "tmp"):
        (tmp_path / name).mkdir()
    process = started(
        tmp_path / "removed",
        "print(Path.cwd())\nexit_process(0)",
        first="import os; os.rmdir(os.getcwd())",
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert str(tmp_path / "tmp" / PREFIX) in process.communicate(timeout=60)[0].decode()


def test_a_last_step_that_does_not_end_or_raises_holds_nothing_up(tmp_path: Path) -> None:
    process = started(
        tmp_path,
        """
from airflow_logio.driver import last_steps
last_steps.STEP_SECONDS = 0.2
before_exit(threading.Event().wait)
before_exit(lambda: 1 / 0)
threading.Thread(target=exit_process, args=(3,)).start()
exit_process(3)
""",
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert b"a last step of the driver failed: ZeroDivisionError" in output
