"""Failures of tasks: a file system that is full or unavailable is nobody's fault, anything else is the author's."""

from __future__ import annotations

import errno
import os

import pytest

from airflow_logio.runtime.driver.spark_errors import store_fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS, errno.EDQUOT])
def test_what_python_and_the_jvm_say_of_a_file_system_is_recognized(number: int) -> None:
    told = os.strerror(number)
    task = OSError(number, told, "/mnt/payloads/1.parquet")
    assert store_fault(Exception(f"Job aborted: PythonException: Traceback ...\nOSError: {task}")) == told
    jvm = f"Job aborted: java.io.FileNotFoundException: /mnt/payloads/1.parquet ({told})"
    assert store_fault(Exception(jvm)) == told


@pytest.mark.parametrize(
    "text", ["ValueError: [Errno] is no number", "OSError: [Errno 2] No such file or directory", "disk full of ideas"]
)
def test_other_failures_are_not(text: str) -> None:
    assert store_fault(Exception(text)) is None
