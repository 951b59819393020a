"""What libraries put off until they are used for the first time: up to half a second, and more on a busy machine.

A process that has time uses them once before it is needed.
"""

from __future__ import annotations

import logging

import pyarrow as pa

log = logging.getLogger(__name__)


def use_once() -> None:
    """Arrow's first aggregation imports its engine, and that imports pandas, where it is installed. Never raises: who needs
    what cannot be imported will say so."""
    try:
        pa.table({"key": ["a"], "value": [1]}).group_by("key").aggregate([("value", "sum")])
    except Exception as error:
        log.warning("Arrow cannot aggregate here: %s: %s", type(error).__name__, error)
