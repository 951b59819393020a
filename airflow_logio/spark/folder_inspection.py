"""Whether the folder of a `DatasetWriter` is as it expects it, asked before anything is published: nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import LogioError
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.spark.publishing import asked, claim_of
from airflow_logio.systems.inspection import Finding

_NEXT = Owner("", 2.0**33)
"""A run that begins after all others."""


def inspect_folders(pipeline: Pipeline, urls: Mapping[str, str]) -> Iterator[Finding]:
    """What is found of the folder of each `DatasetWriter`, for a run that would begin now."""
    for name, writer in pipeline.operators.items():
        if isinstance(writer, DatasetWriter):
            what = f"writer {name!r}, folder {writer.folder or '.'!r} of {writer.connection!r}"
            try:
                _inspect(writer, urls[writer.connection])
            except LogioError as error:
                yield Finding(what, str(error))
            except (OSError, ValueError) as error:
                yield Finding(what, f"{type(error).__name__}: {error}")
            else:
                yield Finding(what)


def check_not_replaced(writer: DatasetWriter, url: str, run: Owner) -> None:
    """Raises `WriteRefused` if a newer run has taken over the folder or partitions of it, so that this run could write there
    no more, `ExternalUnavailable` if the file system does not answer, `ConfigurationError`."""
    claim = claim_of(writer, url, run)
    with asked(writer):
        claim.check_retry()


def _inspect(writer: DatasetWriter, url: str) -> None:
    claim = claim_of(writer, url, _NEXT)
    with asked(writer):
        claim.place.check()
        claim.check_begin()
