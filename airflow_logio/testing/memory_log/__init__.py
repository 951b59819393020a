"""The log in memory: the same port, the same refusals, for users' tests and for the simulator. Nothing outlives it."""

from __future__ import annotations

from airflow_logio.testing.memory_log.store import MemoryLogStore

__all__ = ["MemoryLogStore"]
