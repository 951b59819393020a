"""A dataset that is written as it is: its files are copied, and their records are never decoded (ADR-96)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import LogUnavailable
from airflow_logio.spark.dataset_jobs import check_seen
from airflow_logio.spark.placing import COPYING, Copy, copied_by_spark
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, in_order
from airflow_logio.systems.payloads.payload_store import HIDDEN

DRIVER_BYTES = 16 * 2**20
"""Datasets up to this size are copied by the driver: a job of Spark would take longer. Executors copy larger ones."""


def duplicated(session: Any, payloads: EpochPayloads, where: str, purpose: str, dataset: Dataset) -> Dataset:
    """The same records as a dataset of its own, of files that new files in a folder look like; durable when this returns.

    Raises as `Dataset.check`, and what the job raises.
    """
    dataset.check()
    folder = payloads.new_folder(purpose)
    crash_here(CrashPoint.BEFORE_DATASET_JOB)
    sources = dataset.manifest.files
    files = [
        replace(file, path=f"{folder}/{place:05d}-{uuid.uuid4().hex}.parquet") for place, file in enumerate(sources)
    ]  # in the same order
    if dataset.nbytes <= DRIVER_BYTES:
        payloads.copy(sources, files)
    else:
        try:
            copied_by_spark(session, purpose, _copies(payloads.root, sources, files), COPYING)
        except OSError as error:
            raise LogUnavailable(f"{payloads}: {error}") from error
        check_seen(payloads.root, files)
    payloads.settle(folder)
    crash_here(CrashPoint.AFTER_DATASET_JOB)
    manifest = dataset.manifest
    made = payloads.put(where, purpose, Manifest(manifest.schema, manifest.arrow, in_order(files)))
    crash_here(CrashPoint.AFTER_MANIFEST)
    return made


def _copies(root: str, sources: Sequence[DataFile], targets: Sequence[DataFile]) -> list[Copy]:
    return [
        Copy(os.path.join(root, source.path), os.path.join(root, target.path), source.size, source.footer, HIDDEN)
        for source, target in zip(sources, targets, strict=True)
    ]
