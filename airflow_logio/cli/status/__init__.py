"""`logio status`: what the log says about runs, groups, connections and drivers, once or repeatedly."""

from airflow_logio.cli.status.command import register

__all__ = ["register"]
