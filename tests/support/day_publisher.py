"""A process that does what a driver does in a lake: it claims its day, and closes it; `lake_storm` starts and kills it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.payloads import Payloads
from tests.support.publishers import DayPublisher

REFUSED = 3


def main(config: Path) -> int:
    given = json.loads(config.read_text())
    payloads, opened = Payloads(given["payloads"]), Path(given["opened"])
    run = DayPublisher(given["lake"], payloads, given["ordinal"], given["token"], store=given["store"], **given["line"])
    actions = [
        WriteAction(run.run_uid, "save", "lake", number, given["token"], run.nothing, dataset=dataset)
        for number, dataset in enumerate(given["datasets"], 2)
    ]
    try:
        if not opened.exists():
            run.open_day()
            opened.touch()
        run.close_day(*actions)
    except WriteRefused as error:
        traceback.print_exception(error)
        return REFUSED
    return 0


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1])))  # as a driver ends
