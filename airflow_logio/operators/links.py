"""Links of a group's task: the Spark UI of its present driver, its cluster manager's page, and what its drivers print.

Airflow stores a link as an XCom when a segment of the task ends, a deferral included. A recovered group has another driver
then, so the trigger stores the link again when that one has reported (`LogioGroupTrigger`).
"""

from __future__ import annotations

from typing import Any

from airflow_logio import _compat
from airflow_logio._compat import BaseOperatorLink
from airflow_logio.triggers.stored_link import MANAGER_KEY, SPARK_UI_KEY


class SparkUiLink(BaseOperatorLink):
    """The Spark UI of the group's present incarnation, or its page of the history server (``[logio] spark_history_url``)."""

    name = "Spark UI"
    xcom_key = SPARK_UI_KEY

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """What this segment of the task has seen last; what the trigger has stored if it has seen nothing."""
        seen: str | None = getattr(operator, "spark_ui", None)
        return _compat.stored_link(ti_key, SPARK_UI_KEY) if seen is None else seen


class ManagerLink(BaseOperatorLink):
    """The page of its cluster manager about the group's present driver; none on Kubernetes, or for a process of a worker."""

    name = "Cluster manager"
    xcom_key = MANAGER_KEY

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """As that of the Spark UI."""
        seen: str | None = getattr(operator, "manager_page", None)
        return _compat.stored_link(ti_key, MANAGER_KEY) if seen is None else seen


class DriverLogLink(BaseOperatorLink):
    """What the group's drivers print: the log of its task has it, wherever they run (ADR-98)."""

    name = "Driver log"
    xcom_key = "_link_LogioDriverLog"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return str(getattr(ti_key, "log_url", ""))
