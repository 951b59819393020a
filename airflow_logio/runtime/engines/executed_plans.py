"""What a client of Spark Connect has had executed, found on its way to the server: the server tells nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

_EXECUTE = "/spark.connect.SparkConnectService/ExecutePlan"
_ACTIONS = {
    "root": "an action (such as count(), collect() or toPandas())",
    "write_operation": "a write",
    "write_operation_v2": "a write",
    "merge_into_table_command": "a write",
    "write_stream_operation_start": "the start of a stream",
    "checkpoint_command": "checkpoint()",
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


def _action(plan: Any) -> str | None:
    kind = plan.WhichOneof("op_type")
    if kind == "compressed_operation":  # a large one
        compressed = plan.compressed_operation
        is_command = compressed.op_type == compressed.OpType.OP_TYPE_COMMAND
        return None if is_command else _ACTIONS["root"]
    if kind == "command":
        kind = plan.command.WhichOneof("command_type")
    return _ACTIONS.get(kind)
