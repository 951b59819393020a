"""What libraries put off until they are used for the first time: up to half a second, and more on a busy machine.

A process that has time uses them once before it is needed.
"""

from __future__ import annotations

import pyarrow as pa


def use_once() -> None:
    """Arrow's first aggregation imports its engine, and that imports pandas, where it is installed."""
    pa.table({"key": ["a"], "value": [1]}).group_by("key").aggregate([("value", "sum")])
