"""A process that does what a driver does in a bucket: it executes the write actions of its run, in order, until all are done.

`bucket_storm` starts, stops and kills it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import ExternalUnavailable, WriteRefused
from airflow_logio.systems.payloads import Payloads
from tests.support.publishers import Publisher

REFUSED = 3
WAITS = 0.1
"""Seconds between tries, of a driver that waits for its store."""


def main(config: Path) -> int:
    given = json.loads(config.read_text())
    run = Publisher(given["lake"], Payloads(given["payloads"]), given["run"], given["mode"], given["token"])
    about = (run.run_uid, "save", "lake")
    actions = [
        WriteAction(*about, number, given["token"], pa.table({}), dataset=dataset)
        for number, dataset in enumerate(given["datasets"], 2)
    ]
    for action in (*run.opening(), *actions):
        while True:
            try:
                run.publish(action)
                break
            except ExternalUnavailable as error:
                traceback.print_exception(error)
                time.sleep(WAITS)
            except WriteRefused as error:
                traceback.print_exception(error)
                return REFUSED
    return 0


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1])))  # as a driver ends
