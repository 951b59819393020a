"""How requests reach a Spark Connect server, and what is seen on the way: what its client has had executed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import zstandard
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import Command

LOOPBACK = "127.0.0.1"
_OPTIONS = [
    # A server allows a question in five minutes. One whose host is gone is found out that way, and by nothing else.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]
_EXECUTE = "/spark.connect.SparkConnectService/ExecutePlan"
_ACTIONS = {
    "root": "an action (such as count(), collect() or toPandas())",
    "write_operation": "a write",
    "write_operation_v2": "a write",
    "merge_into_table_command": "a write",
    "write_stream_operation_start": "the start of a stream",
    "checkpoint_command": "checkpoint()",
    "ml_command": "fit() of a model",
}
"""Kind of a plan → what its author has called. Other commands define something: views, functions, queries in SQL."""


class ExecutedPlans(grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Notes the actions of threads that are in a `noting` block, and passes every request on."""

    def __init__(self) -> None:
        self._of = threading.local()

    @contextmanager
    def noting(self, found: list[str]) -> Iterator[None]:
        """Within the block, actions of this thread are added to `found`."""
        self._of.found = found
        try:
            yield
        finally:
            self._of.found = None

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        """As gRPC calls it, for each request."""
        found = getattr(self._of, "found", None)
        if found is not None and client_call_details.method == _EXECUTE and (action := _action(request.plan)):
            found.append(action)
        return continuation(client_call_details, request)


class OnlyToServer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Lets no request out when the server does not run any more: a channel connects again by itself, and would give token
    and records to the program that has the port then. Fails them with `ConnectionError`, which is a lost server."""

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self._is_there = is_there

    def _checked(self, continuation: Callable[..., Any], client_call_details: Any, requests: Any) -> Any:
        if not self._is_there():
            raise ConnectionError("the Spark Connect server has ended")
        return continuation(client_call_details, requests)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _checked


def _action(plan: Any) -> str | None:
    kind = plan.WhichOneof("op_type")
    command = plan.command
    if kind == "compressed_operation":  # a large one
        compressed = plan.compressed_operation
        if compressed.op_type != compressed.OpType.OP_TYPE_COMMAND:
            return _ACTIONS["root"]
        kind, command = (
            "command",
            Command.FromString(zstandard.ZstdDecompressor().decompressobj().decompress(compressed.data)),
        )
    if kind == "command":
        kind = command.WhichOneof("command_type")
    return _ACTIONS.get(kind)


def builder(url: str) -> Any:
    """The channel to a server anywhere. One on this machine is asked at the address that it is bound to: by the name
    ``localhost``, for which pyspark sends a token without TLS, another user's program could be found at ``[::1]``."""
    kind = LoopbackChannels if url.startswith("sc://localhost:") else DefaultChannelBuilder
    options = [*_OPTIONS, ("grpc.enable_http_proxy", 0)] if kind is LoopbackChannels else _OPTIONS
    return kind(url, channelOptions=options)


class LoopbackChannels(DefaultChannelBuilder):  # type: ignore[misc]
    """The channel to a server of this machine."""

    @property
    def endpoint(self) -> str:
        """Its address; the name stays ``localhost``."""
        return f"{LOOPBACK}:{self._port}"
