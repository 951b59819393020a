"""Whether the folder of a `DatasetWriter` is as it expects it, asked before anything is published: nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.runtime.datasets.folder_claims import FolderClaim
from airflow_logio.runtime.datasets.publishing import folder_of
from airflow_logio.runtime.systems.inspection import Finding

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
    folder = os.path.join(folder_of(writer, url), writer.folder)
    try:
        FolderClaim(folder, writer, run).check_retry()
    except OSError as error:
        raise ExternalUnavailable(f"connection {writer.connection!r}: {error}") from error


def _inspect(writer: DatasetWriter, url: str) -> None:
    base = folder_of(writer, url)
    folder = os.path.join(base, writer.folder)
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise ConfigurationError(f"{there} is no folder; move it elsewhere")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(f"{there} cannot be written by this user; allow it, or mount it for writing")
    FolderClaim(folder, writer, _NEXT).check_begin()
