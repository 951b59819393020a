"""The DAGs that can be demonstrated: ``make demo DAG=...``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from airflow_logio.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Example:
    """A DAG of the repository, and the pipeline that it runs."""

    dag_id: str
    pipeline: str
    """File below ``dags/pipelines``, and the attribute in it."""
    records: int | None = None
    """Number of transactions to use from the beginning of the file; None for all."""

    def transactions(self, file: Path, folder: Path) -> Path:
        """The file for the DAG run: `file` itself, or its beginning, written into `folder`."""
        if self.records is None:
            return file
        target = folder / f"transactions_{self.records}.parquet"
        pq.write_table(pq.read_table(file).slice(0, self.records), target)
        return target


EXAMPLES = {
    one.dag_id: one
    for one in (
        Example("logio_sales", "sales.py:sales"),
        # Slow on purpose: all of them would take an hour.
        Example("logio_sales_scaled", "sales_scaled.py:sales_scaled", records=200_000),
    )
}


def example(dag_id: str) -> Example:
    """Raises `ConfigurationError`."""
    if dag_id not in EXAMPLES:
        raise ConfigurationError(f"there is no demonstration of DAG {dag_id!r}; choose {' or '.join(EXAMPLES)}")
    return EXAMPLES[dag_id]
