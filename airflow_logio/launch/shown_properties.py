"""Properties that a cluster manager shows: its pages, its files and every executor have them, so no secret may be among them.

Spark hides values in its own pages by name (``spark.redaction.regex``); the managers' pages, the files of a submission and
the command lines of JVMs hide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.redaction import has_password

OF_PROCESSES = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.", "spark.executorEnv.")
"""How properties begin that are variables of processes on nodes."""
_INSTEAD = (
    "the manager shows it to all who may look. Leave it out there, and put it into the file or the Secret that tells drivers "
    "where the log is (docs/how-to/run-on-a-cluster.md): a URL under `connections`, a variable that `Pipeline(environment=)` "
    "names under `environment`"
)


def check_no_secrets(conf: Mapping[str, str], secrets: Collection[str]) -> None:
    """Refuse properties that hold a secret: one of `secrets` (`redaction.known_secrets`), or a URL with a password.

    Variables that a manager is sent beside properties are checked as `conf`, too. No message repeats a value. Raises
    `ConfigurationError`.
    """
    for name, value in sorted(conf.items()):
        if (found := _secret_in(value, secrets)) is not None:
            what = "the variable" if name.startswith(OF_PROCESSES) or not name.startswith("spark.") else "the property"
            raise ConfigurationError(f"{what} {name} of a driver on a cluster holds {found}: {_INSTEAD}")


def _secret_in(value: str, secrets: Collection[str]) -> str | None:
    if has_password(value):
        return "a URL with a password"
    if any(secret in value for secret in secrets):
        return "a secret of the log, of a connection, of the payload store or of the environment"
    return None
