"""An application in place of a driver on YARN, which does what its group is named after.

It `works` until the file exists that is named like its submission, in the folder that the variable `FLAGS` names: with a
Spark context without executors, as a driver has one. It `stays` without one, `ends` with one, and `fails` before it has one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FAILED = 4


def make_context() -> None:
    from airflow_logio.driver.spark_session import begin_idle_application

    begin_idle_application().join()


if __name__ == "__main__":
    told = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    sys.stdout.write(f"{sys.argv[1:]} in {os.environ['CONTAINER_ID']}\n")
    sys.stdout.flush()
    if told["group"] == "fails":
        sys.exit(FAILED)
    parent = os.getppid()
    if told["group"] in ("works", "ends"):
        make_context()
    flag = Path(os.environ["FLAGS"]) / told["name"]
    while told["group"] != "ends" and not flag.exists() and os.getppid() == parent:
        time.sleep(0.05)
