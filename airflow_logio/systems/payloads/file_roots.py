"""Which files of datasets a root of a payload store stands for; tasks and drivers ask here."""

from __future__ import annotations

from functools import lru_cache

from airflow_logio.systems.hdfs_roots import is_hdfs
from airflow_logio.systems.payload_roots import is_local, local_path
from airflow_logio.systems.payloads.data_files import DataFiles
from airflow_logio.systems.payloads.local_files import LocalDataFiles


@lru_cache(maxsize=8)
def data_files(root: str) -> DataFiles:
    """The files below a root. Raises `ConfigurationError`, and `LogUnavailable` if the store had to be asked."""
    if is_local(root):
        return LocalDataFiles(str(local_path(root)))
    if is_hdfs(root):
        from airflow_logio.systems.payloads.hdfs_files import HdfsFiles

        return HdfsFiles(root)
    from airflow_logio.systems.payloads.bucket_files import BucketFiles

    if root.startswith("gs://"):
        from airflow_logio.systems.payloads.google_files import GoogleFiles

        return GoogleFiles(root)
    return BucketFiles(root)


def size_at(location: str) -> int:
    """Bytes. Raises as `DataFiles.size`."""
    files, path = located(location)
    return files.size(path)


def located(location: str) -> tuple[DataFiles, str]:
    """Where a `DataFiles.location` is: the files of its store, and its path among them. Raises as `data_files`."""
    if is_local(location):
        return data_files("/"), str(local_path(location)).lstrip("/")
    if is_hdfs(location):
        from airflow_logio.systems.payloads.hdfs_files import parted
    else:
        from airflow_logio.systems.bucket_roots import parted

    root, path = parted(location)
    return data_files(root), path
