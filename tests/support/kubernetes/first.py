"""Runs a program as the first process of a container does that cannot be one itself: signals pass, and orphans are reaped.

With code 128 + n if signal n has ended it. It stands for `tini -s`, which Spark's image has.
"""

from __future__ import annotations

import os
import signal
import sys

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(command: list[str]) -> int:
    # Blocked until there is a child to pass them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"exec {command[0]}: {error.strerror}\n")
            os._exit(127)
    for one in PASSED:
        signal.signal(one, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
