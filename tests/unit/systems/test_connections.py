"""Side-effect reads by an author's function: which errors mean that the external system is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.error import URLError

import httpx
import pyarrow as pa
import pytest
import requests

from airflow_logio.dataflow import FunctionRead
from airflow_logio.errors import ExternalUnavailable, OperatorFailed, PipelineDefinitionError
from airflow_logio.systems.connections import Connections, WriterIdentity

OUTAGES = [
    URLError(OSError(101, "Network is unreachable")),
    requests.ConnectionError("refused"),
    requests.ReadTimeout("too slow"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("too slow"),
    ConnectionResetError("reset"),
    TimeoutError("too slow"),
]


class QuotaSpent(Exception):
    """An error of some library."""


def fails_first(*errors: Exception) -> Callable[[str, pa.Array | None], pa.Table]:
    left = list(errors)

    def fetch(url: str, keys: pa.Array | None) -> pa.Table:
        if left:
            raise left.pop(0)
        return pa.table({"a": [1]})

    return fetch


def read(declared: FunctionRead, seconds: float = 30) -> pa.Table:
    connections = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), seconds)
    return connections.read(declared, None)


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_a_service_that_is_unavailable_is_asked_again(error: Exception) -> None:
    assert read(FunctionRead("api", fails_first(error))).num_rows == 1


def test_it_is_asked_for_as_long_as_the_run_says_and_the_last_error_is_told() -> None:
    started = time.monotonic()
    with pytest.raises(
        ExternalUnavailable, match=r"connection 'api': after .* attempts .* ConnectError: refused.* `logio retry`"
    ):
        read(FunctionRead("api", fails_first(*[httpx.ConnectError("refused")] * 100)), seconds=0.5)
    assert time.monotonic() - started >= 0.5


def test_an_author_adds_errors_that_mean_unavailable() -> None:
    fetch = fails_first(QuotaSpent("come back later"), ConnectionError("gone"))
    assert read(FunctionRead("api", fetch, unavailable=(QuotaSpent,))).num_rows == 1


def test_an_error_that_does_not_count_says_how_it_would() -> None:
    with pytest.raises(OperatorFailed) as caught:
        read(FunctionRead("api", fails_first(QuotaSpent("come back later"))))
    for words in ("connection 'api'", "QuotaSpent: come back later", "add QuotaSpent to `unavailable` of FunctionRead"):
        assert words in str(caught.value)
    with pytest.raises(OperatorFailed) as caught:
        read(FunctionRead("api", fails_first(KeyError("price"))))
    assert "unavailable" not in str(caught.value)


def test_what_is_no_class_of_errors_is_refused() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"unavailable has 'LookupError'; give classes of errors"):
        FunctionRead("api", fails_first(), unavailable="LookupError")  # type: ignore[arg-type]
    assert FunctionRead("api", fails_first(), unavailable=LookupError).unavailable == (LookupError,)  # type: ignore[arg-type]
