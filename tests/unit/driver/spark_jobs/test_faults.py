"""Failures of tasks: a file system that is full or unavailable is not the author's fault, anything else is the author's."""

from __future__ import annotations

import errno
import os

import pytest

from airflow_logio.driver.spark_jobs.faults import lost_on_the_way, shuffle_lost, store_fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EROFS, errno.EDQUOT])
def test_what_python_and_the_jvm_say_of_a_file_system_is_recognized(number: int) -> None:
    told = os.strerror(number)
    task = OSError(number, told, "/mnt/payloads/1.parquet")
    assert store_fault(Exception(f"Job aborted: PythonException: Traceback ...\nOSError: {task}")) == told
    jvm = f"Job aborted: java.io.FileNotFoundException: /mnt/payloads/1.parquet ({told})"
    assert store_fault(Exception(jvm)) == told


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "Job aborted: org.apache.hadoop.fs.s3a.AWSServiceThrottledException: getFileStatus on s3a://b/1.parquet: "
            "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate (Status Code: 503)",
            "AWSServiceThrottledException",
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSClientIOException: re-open s3a://b/1.parquet: SdkClientException: Unable to execute "
            "HTTP request: Connect to store:9000 failed",
            "AWSClientIOException",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/1.parquet. Caused by: "
            "org.apache.http.ConnectionClosedException: Premature end of Content-Length delimited message body (expected: 3)",
            "org.apache.http.ConnectionClosedException",
        ),
        (
            "Caused by: java.io.IOException: Client error accessing s3://b/1.parquet, failed with: Unable to execute HTTP "
            "request: The target server failed to respond (SDK Attempt Count: 6)",
            "Unable to execute HTTP request",
        ),
        (
            "Caused by: java.io.IOException: Server error accessing s3://b/1.parquet, request failed with: InternalError "
            "(Service: S3, Status Code: 500, Request ID: none) (SDK Attempt Count: 6)",
            "Service: S3, Status Code: 500",
        ),
        (
            "Server error accessing s3://b/1.parquet, request failed with: AccessDenied (Service: S3, Status Code: 403)",
            None,
        ),
        ("java.nio.file.AccessDeniedException: s3a://b/1.parquet: S3Exception: Forbidden (Status Code: 403)", None),
        ("java.io.FileNotFoundException: No such file or directory: s3a://b/1.parquet", None),
    ],
)
def test_a_bucket_that_is_unavailable_is_no_fault_of_the_author(text: str, fault: str | None) -> None:
    assert store_fault(Exception(text)) == fault


@pytest.mark.parametrize(
    "text", ["ValueError: [Errno] is no number", "OSError: [Errno 2] No such file or directory", "disk full of ideas"]
)
def test_other_failures_are_not(text: str) -> None:
    assert store_fault(Exception(text)) is None


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in "
            "stage 1.0 (TID 3) (host executor 1): ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
            "ExecutorLostFailure",
        ),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "Python worker exited unexpectedly",
        ),
        ("Task 3 failed: FetchFailed(BlockManagerId(1, host, 7337, None), shuffleId=2", "FetchFailed"),
        (
            "PythonException: Traceback ...\nConnectionRefusedError: [Errno 111] Connection refused",
            "ConnectionRefusedError",
        ),
        ("java.net.SocketException: Broken pipe", "java.net.SocketException"),
        ("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group logio run g 1 0", "Job 7 cancelled"),
        (
            "Task 0 failed 1 times: Lost task 0.0 in stage 1.0: ValueError: the order was cancelled because of rain",
            None,
        ),
        ("OSError: [Errno 13] Permission denied", None),
        ("java.lang.ArithmeticException: divide by zero", None),
    ],
)
def test_what_is_lost_on_the_way_is_told_from_what_would_fail_again(text: str, lost: str | None) -> None:
    assert lost_on_the_way(Exception(text)) == lost


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and retried. "
            "However, Spark cannot rollback the ResultStage 4 to re-process the input data, and has to fail this job.",
            "indeterminate output was failed and retried",
        ),
        (
            "Job aborted due to stage failure: cannot rollback a running result stage, please re-run the query to ensure "
            "data correctness",
            "cannot rollback",
        ),
        (
            "Job aborted due to stage failure: ShuffleMapStage 20 (toArrow at dataset_jobs.py:118) has failed the maximum "
            "allowable number of times: 4. Most recent failure reason:\norg.apache.spark.shuffle.FetchFailedException",
            "has failed the maximum allowable number of times",
        ),
        (
            "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: ExecutorLostFailure "
            "(executor 1 exited caused by one of the running tasks)",
            None,
        ),
        ("ValueError: cannot rollback the order", None),
    ],
)
def test_a_lost_shuffle_is_told_from_a_task_that_takes_its_executor_along(text: str, lost: str | None) -> None:
    error = Exception(f"An error occurred while calling o179.getResult.\n: org.apache.spark.SparkException: {text}")
    assert shuffle_lost(error) == lost
    assert lost_on_the_way(error) == (lost or ("ExecutorLostFailure" if "ExecutorLost" in text else None))
