"""Three plain groups through which one number goes at a time: read, doubled, written. Each driver can be traced.

The writer is one of an author's own: what a table adds, it adds in the files of its database.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import IdempotentWriter, Pipeline, SourceBatch, WriteAction, stateless
from airflow_logio.dataflow.operators import SourceOperator

FOLDER, REPOSITORY = "TRACE_FOLDER", "TRACE_REPOSITORY"
"""Variables of the environment: where the traced drivers and the test talk, and from where drivers import the tracing."""
BEFORE = 5
"""So many events pass before the one that is traced; another one follows."""

GROUPS = ("read", "double", "write")

if Path.cwd().parent.name in GROUPS:  # a driver works in a folder of its own, below that of its group
    sys.path.insert(0, os.environ[REPOSITORY])
    from airflow_logio.driver import garbage
    from tests.support.tracing import trace_when_asked

    garbage.COLLECT_SECONDS = 3_600.0  # garbage is collected once a second, if at all: it is no part of an event's way
    trace_when_asked(Path(os.environ[FOLDER]), Path.cwd().parent.name)


def let_go(folder: Path, number: int) -> None:
    """Called by the test: the source may hand this number over."""
    _permission(folder, number).touch()


def _permission(folder: Path, number: int) -> Path:
    return folder / f"go-{number}"


class Numbers(SourceOperator):
    """Before the event that is traced, and after it, it waits for a file."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"from": 0}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        folder = Path(os.environ[FOLDER])
        for number in range(offset, BEFORE + 2):
            while number >= BEFORE and not _permission(folder, number).exists():
                time.sleep(0.01)
            yield SourceBatch(pa.table({"n": [number]}), number + 1)


@stateless
def doubled(numbers: pa.Table) -> pa.Table:
    return pa.table({"n": pc.multiply(numbers["n"], 2)})


class Files(IdempotentWriter[Path]):
    """A file for each number."""

    def connect(self, url: str) -> AbstractContextManager[Path]:
        return nullcontext(Path(url.removeprefix("file://")))

    def write(self, client: Path, action: WriteAction) -> None:
        (number,) = action.records["n"].to_pylist()
        (client / str(number)).touch()


pipeline = Pipeline("one_by_one", connections=["files"], environment=[FOLDER, REPOSITORY])
read = pipeline.source("read", Numbers())
double = pipeline.operator("double", doubled, read)
write = pipeline.writer("write", Files("files"), double)
pipeline.group("read", read)
pipeline.group("double", double)
pipeline.group("write", write)
