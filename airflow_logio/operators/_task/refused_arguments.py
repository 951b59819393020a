"""Arguments of SparkSubmitOperator that mean nothing here: each is refused with the reason, and with what to do instead."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from airflow_logio.errors import ConfigurationError

_OWN_DRIVER = (
    "the application is LOG.io's driver, which runs the operators of the group: give pipeline and group instead"
)
_BY_LOG = "how a driver fares is read from the log, not asked of the cluster's manager: leave it out"
_DURABLE = (
    "a retry always resumes a group that lives, because the log knows it. To compute a run again from its beginning, use "
    "LogioFreshRunOperator"
)
_REASONS = {
    "application": _OWN_DRIVER,
    "application_args": f"{_OWN_DRIVER}; values for the pipeline are its parameters (LogioPipelineGroup(params={{...}}))",
    "java_class": _OWN_DRIVER,
    "post_submit_commands": (
        "a driver may be recovered by another task on another machine, so there is no place behind it for commands. Put them "
        "into a task downstream of this one"
    ),
    "track_driver_via_k8s_api": _BY_LOG,
    "yarn_track_via_rm_api": _BY_LOG,
    "yarn_rm_auth": _BY_LOG,
    "durable": _DURABLE,
    "reconnect_on_retry": _DURABLE,
}
_ALWAYS = ("durable", "reconnect_on_retry")
"""They are on here, so that only False is refused."""


def refuse(task_id: str, given: MutableMapping[str, Any]) -> None:
    """Take these arguments out of `given`. Raises `ConfigurationError` for one that asks for something."""
    for name, reason in _REASONS.items():
        value = given.pop(name, None)
        if value is False if name in _ALWAYS else value:
            raise ConfigurationError(f"task {task_id!r}: LogioSparkOperator has no {name}={value!r}: {reason}")
