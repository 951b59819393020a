"""pyspark and pyspark-client share their files: of two versions, each file is that of the one that was installed last.

The mixture works until it needs what only one of them has: client 4.2.0 over pyspark 4.3.0 groups and counts, and fails at
the first Python function. `pip check` finds nothing wrong with it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from airflow_logio.errors import ConfigurationError

PYSPARK, CLIENT = "pyspark", "pyspark-client"


def check_versions() -> None:
    """Refuse pyspark and pyspark-client of two versions, where this process finds both. Raises `ConfigurationError`."""
    spark, client = _installed(PYSPARK), _installed(CLIENT)
    if spark is None or client is None or spark == client:
        return
    # Each client was released with a pyspark of its version, and not the other way round.
    raise ConfigurationError(
        f"{PYSPARK} {spark} and {CLIENT} {client} (which Airflow's Spark provider needs) are installed here. They share "
        "their files, so that some are of the wrong version, and Spark's Python fails. Install one version of both: "
        f"pip install {PYSPARK}=={client} {CLIENT}=={client}   (or another version that both have, as your cluster needs it)"
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
