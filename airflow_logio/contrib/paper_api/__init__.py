"""The LOG.io API of the paper (Section 6.2), for authors who drive the protocol by hand.

Derive from `airflow_logio.dataflow.ManualOperator` and write its `run(logio)`: the driver executes it in place of its
own loop. The group is launched, fenced, watched and recovered like any other. An API transaction is one fenced commit.
The paper's three tables are `Logio` (interface and recovery methods) and `Transaction`; its Listings 1 to 3, corrected,
are the example `dags/pipelines/by_hand.py`.
"""

from airflow_logio.contrib.paper_api.book import Stopped
from airflow_logio.contrib.paper_api.infos import (
    AcknowledgedEvent,
    ActionInfo,
    EventInfo,
    ReadAction,
    ReadProgress,
    StateInfo,
    StreamEvent,
)
from airflow_logio.contrib.paper_api.logio import Logio
from airflow_logio.contrib.paper_api.transaction import Transaction
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction

__all__ = [
    "AcknowledgedEvent",
    "ActionInfo",
    "EventInfo",
    "Logio",
    "Marker",
    "ReadAction",
    "ReadProgress",
    "StateInfo",
    "Stopped",
    "StreamEvent",
    "Transaction",
    "WriteAction",
]
