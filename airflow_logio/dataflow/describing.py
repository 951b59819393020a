"""What enters the fingerprint of a run (design D13): stable names, plain settings, source text."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

_OURS = "airflow_logio."
_RECORDED_IN = {
    "Count": "sinks",
    "DatasetWriter": "dataset_writer",
    "ParquetWriter": "parquet_writer",
    "TableWriter": "table_writer",
    "FunctionOperator": "function_operators",
    "WindowedOperator": "function_operators",
    "BatchOperator": "function_operators",
    "FrameWindowOperator": "function_operators",
    "FrameFunctionOperator": "frame_operators",
    "SeveralFunctions": "several_functions",
    "Merger": "replication.merger",
    "OrderedMerger": "replication.merger",
    "_Filtered": "ready_made",
    "_Selected": "ready_made",
    "_Joined": "ready_made",
    "_Summed": "ready_made",
    "_SummedFrom": "ready_made",
}
"""Class that has moved within this package → the module that runs have recorded for it. A run resumes only with the graph
that it was started with, so the name must outlive the module."""


def stable_name(thing: type | Callable[..., Any]) -> str:
    """Name of a class or function that is the same however its module was found, and in every version.

    Only our own names carry the module: an author's module is ``pipelines.sales`` for one process and a bundle's file
    for another, and both build the same pipeline.
    """
    name = str(getattr(thing, "__qualname__", type(thing).__qualname__))
    module = getattr(thing, "__module__", None) or ""
    if not module.startswith(_OURS):
        return name
    if module.startswith(f"{_OURS}dataflow.") and name in _RECORDED_IN:
        module = f"{_OURS}dataflow.{_RECORDED_IN[name]}"
    return f"{module}.{name}"


def plain_settings(thing: object) -> dict[str, Any]:
    """Public attributes of an object: plain JSON values, sequences and mappings of them, and what has `describe`."""
    settings = {}
    for key, value in sorted(getattr(thing, "__dict__", {}).items()):
        if key.startswith("_"):
            continue
        if is_plain(value):
            settings[key] = list(value) if isinstance(value, tuple) else value
        elif hasattr(value, "describe"):
            settings[key] = value.describe()
    return settings


def is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def class_source(cls: type) -> str:
    """Source text of a class and of its bases outside this package (ours change with every release, harmlessly)."""
    theirs = [c for c in cls.__mro__ if c is not object and not c.__module__.startswith((_OURS, "abc", "typing"))]
    return "\n".join(source(c) for c in theirs)


def source(thing: Any) -> str:
    """Source text, or the byte code where there is none (a function typed into a console).

    For a callable object with `describe` it is what that says: the source of its class is the same for all of them.
    """
    if not isinstance(thing, type) and hasattr(thing, "describe"):
        return f"{stable_name(thing)}:{_canonical(thing.describe())}"
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        return f"{stable_name(thing)}:{code.co_code.hex()}:{code.co_names}" if code else stable_name(thing)


def digest(value: Any) -> str:
    """blake2b of the canonical JSON of a value, 32 hexadecimal digits."""
    return hashlib.blake2b(_canonical(value).encode(), digest_size=16).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
