"""Which errors of an author's libraries mean that an external system is unavailable; they are raised by the libraries."""

from __future__ import annotations

import http.client
import http.server
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
import urllib3

from airflow_logio.dataflow.unavailability import advice, advice_for_code, is_outage
from airflow_logio.errors import ExternalUnavailable

SECONDS = 0.5


def by_urllib(url: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_urllib3(url: str) -> None:
    with urllib3.PoolManager(retries=False, timeout=SECONDS) as pool:
        pool.request("GET", url)


ASK: dict[str, Callable[[str], Any]] = {
    "urllib": by_urllib,
    "requests": lambda url: requests.get(url, timeout=SECONDS).raise_for_status(),
    "httpx": lambda url: httpx.get(url, timeout=SECONDS).raise_for_status(),
    "urllib3": by_urllib3,
}


class Answers(http.server.BaseHTTPRequestHandler):
    """``/503`` answers with that status; ``/cut`` promises more than it sends; ``/silent`` says nothing for a second."""

    protocol_version = "HTTP/1.1"
    released = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.released.wait(60)
            return
        status = 200 if self.path == "/cut" else int(self.path[1:])
        self.send_response(status)
        self.send_header("Content-Length", "10" if self.path == "/cut" else "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.path == "/cut":
            self.wfile.write(b"half")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{service.server_port}"
        Answers.released.set()
        service.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """A port that no server listens on."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}/200"


def error_of(ask: Callable[[str], Any], url: str) -> BaseException:
    with pytest.raises(Exception) as caught:
        ask(url)
    return caught.value


@pytest.mark.parametrize("library", ASK)
def test_no_server_and_no_answer_in_time_are_outages(library: str, server: str, nobody: str) -> None:
    assert is_outage(error_of(ASK[library], nobody))
    assert is_outage(error_of(ASK[library], f"{server}/silent"))


@pytest.mark.parametrize("library", ["urllib", "requests", "httpx"])
def test_an_answer_that_ends_early_is_an_outage(library: str, server: str) -> None:
    assert is_outage(error_of(ASK[library], f"{server}/cut"))


@pytest.mark.parametrize("library", ["urllib", "requests", "httpx"])
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_service_that_says_it_is_unavailable_is(library: str, status: int, server: str) -> None:
    assert is_outage(error_of(ASK[library], f"{server}/{status}"))


@pytest.mark.parametrize("library", ["urllib", "requests", "httpx"])
@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_any_other_answer_of_a_service_is_an_answer(library: str, status: int, server: str) -> None:
    assert not is_outage(error_of(ASK[library], f"{server}/{status}"))


def test_attempts_that_an_author_has_limited_end_in_an_outage(server: str) -> None:
    from urllib3.util import Retry

    def ask(url: str) -> None:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=Retry(1, status_forcelist=[503])))
            session.get(url, timeout=SECONDS)

    error = error_of(ask, f"{server}/503")
    assert isinstance(error, requests.exceptions.RetryError)
    assert is_outage(error)


@pytest.mark.parametrize("library", ["urllib", "requests", "httpx"])
@pytest.mark.parametrize("url", ["nonsense://127.0.0.1/", "no-url"])
def test_what_is_no_address_is_an_error_of_the_author(library: str, url: str) -> None:
    assert not is_outage(error_of(ASK[library], url))


def test_names_that_cannot_be_resolved_and_networks_that_cannot_be_reached_are_outages() -> None:
    assert is_outage(socket.gaierror(-3, "Temporary failure in name resolution"))
    assert is_outage(OSError(113, "No route to host"))
    assert is_outage(http.client.RemoteDisconnected("Remote end closed connection"))
    assert is_outage(ExternalUnavailable("said so"))


def test_a_wrong_certificate_and_a_missing_file_are_none() -> None:
    refused = ssl.SSLCertVerificationError("certificate verify failed")
    assert not is_outage(urllib.error.URLError(refused))
    assert not is_outage(requests.exceptions.SSLError("certificate verify failed"))
    assert not is_outage(FileNotFoundError(2, "No such file or directory"))


def test_an_author_adds_errors_and_is_told_how() -> None:
    class QuotaSpent(RuntimeError):
        pass

    assert not is_outage(QuotaSpent())
    assert is_outage(QuotaSpent(), (QuotaSpent,))
    assert is_outage(ConnectionError(), (QuotaSpent,)), "they are added to those that always count"
    assert advice(QuotaSpent(), "FunctionRead") == (
        ". If this means that the external system is unavailable, add QuotaSpent to `unavailable` of FunctionRead: it is "
        "then asked again for `replay_seconds`"
    )
    assert advice(TypeError("x"), "FunctionRead") == "", "an error of Python itself is none of an external system"


@pytest.mark.parametrize(
    "error", [requests.ConnectionError("refused"), TimeoutError("slow"), httpx.ReadTimeout("slow")]
)
def test_an_outage_in_code_that_is_not_asked_again_says_what_is(error: Exception) -> None:
    assert "FunctionRead in `reads`" in advice_for_code(error) and "a writer" in advice_for_code(error)
    assert advice_for_code(KeyError("x")) == advice_for_code(requests.exceptions.SSLError("wrong")) == ""
