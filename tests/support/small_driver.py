"""An application in place of a driver, which does what its group is named after: it `stays`, `ends` or `fails`.

It prints its arguments, and ends with its JVM, as a driver does.
"""

from __future__ import annotations

import os
import sys
import time

FAILED = 4

if __name__ == "__main__":
    sys.stdout.write(f"{sys.argv[1:]}\n")
    sys.stdout.flush()
    parent = os.getppid()
    if "--group=fails" in sys.argv:
        sys.exit(FAILED)
    while "--group=stays" in sys.argv and os.getppid() == parent:
        time.sleep(0.05)
