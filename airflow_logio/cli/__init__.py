"""The command `logio`."""

from __future__ import annotations

from airflow_logio.cli.app import main

__all__ = ["main"]
