"""LOG.io for Apache Airflow and Spark: exactly-once recovery, event lineage, scaling replicas.

What pipeline authors need is here: ``from airflow_logio import Pipeline, ParquetSource, TableWriter, Tumbling, generate``.
What a DAG needs is in `airflow_logio.operators`, `sensors`, `hooks`; the simulator for your tests in `airflow_logio.testing`,
errors in `airflow_logio.errors`, the paper's own calls in `airflow_logio.contrib.paper_api`.

The names are those of `airflow_logio.dataflow`, and `open_store`. They are imported when one of them is first used: a Spark
node needs no Airflow, and provider discovery must stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_logio.dataflow import *  # noqa: F403  # the list is there
    from airflow_logio.store import open_store as open_store

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562). Raises `AttributeError` for any other name."""
    from importlib import import_module
    from importlib.util import find_spec

    # `from airflow_logio import errors` asks here first, and must load no more than that module.
    if name == "__all__" or not (name.startswith("__") or find_spec(f"{__name__}.{name}")):
        dataflow = import_module(f"{__name__}.dataflow")
        if name == "__all__":
            return sorted([*dataflow.__all__, "__version__", "open_store"])
        if name in dataflow.__all__ or name == "open_store":
            home = import_module(f"{__name__}.store") if name == "open_store" else dataflow
            globals()[name] = value = getattr(home, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
