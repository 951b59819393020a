"""Structured Streaming into a Delta table, exactly once by its checkpoint and Delta's own ``txnAppId`` and ``txnVersion``.

A micro-batch is a file of orders. One of the same query has gone into another table before the clock begins. `main` of
``spark_script`` says what is printed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from tests.bench.pipelines.orders import cleanse
from tests.bench.spark_script import Kind, arriving, main


def into_delta(session: Any, wanted: dict[str, Any]) -> None:
    """All files that are there."""
    written = cleanse(arriving(session, wanted)).writeStream.format("delta").outputMode("append")
    written = written.option("checkpointLocation", wanted["checkpoint"]).trigger(availableNow=True)
    written.start(wanted["target"]).awaitTermination()


def warmed(session: Any, wanted: dict[str, Any]) -> None:
    into = wanted["warm_into"]
    into_delta(session, {**wanted, "orders": wanted["warm"], "target": into, "checkpoint": f"{into}.checkpoint"})


KINDS: dict[str, Kind] = {"into_delta": into_delta}

if __name__ == "__main__":
    main(sys.argv[1:], KINDS, warmed)
