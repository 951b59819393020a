"""The payload store: bodies that are too large for the log, and the effects of read actions that cannot be replayed.

Files under one root, a folder or any URL that fsspec can open. A path names run, group, incarnation, epoch and purpose,
and no file is ever overwritten; it is durable before the commit that refers to it. What was written and not committed is
swept when its incarnation is fenced.
"""

from airflow_logio.systems.payloads.payload_store import INLINE_BYTES, EpochPayloads, Payloads
from airflow_logio.systems.payloads.sweeping import clear_away, sweep_group, sweep_removed, sweep_run

__all__ = ["INLINE_BYTES", "EpochPayloads", "Payloads", "clear_away", "sweep_group", "sweep_removed", "sweep_run"]
