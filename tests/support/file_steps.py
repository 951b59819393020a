"""Stands before each call of a test to file system or object store: to die, or to let another one work meanwhile."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_logio.dataflow.writers import arrow_files, folder_files
from airflow_logio.spark import object_place
from tests.support.own_calls import replace_call

CALLS = ("open", "link", "replace", "unlink", "mkdir", "listdir", "scandir", "chmod", "chown", "fsync")


class Died(BaseException):
    """No handler of an error is to catch it."""


class Steps:
    """Counts calls, and stands before one of them."""

    def __init__(self, at: int, then: Callable[[], None] | None) -> None:
        self._at = at
        self._then = then
        self._is_inside = False
        self.passed = 0

    def before(self) -> None:
        if self._is_inside:
            return
        self.passed += 1
        if self._then is None and self.passed >= self._at:
            raise Died  # and who is dead removes nothing on its way out
        if self._then is not None and self.passed == self._at:
            self._is_inside = True
            self._then()
            self._is_inside = False


@contextmanager
def standing(at: int, then: Callable[[], None] | None = None) -> Iterator[Steps]:
    """Before call `at`, from 1: raise `Died`, there and at every later one, or do `then` in its place of time."""
    steps = Steps(at, then)
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in ((os, CALLS), (builtins, ("open",))):
            for name in names:
                replace_call(patch, owner, name, _counting(getattr(owner, name), steps))
        yield steps


@contextmanager
def standing_at_objects(at: int, then: Callable[[], None] | None = None) -> Iterator[Steps]:
    """As `standing`, before each call to an object store."""
    steps = Steps(at, then)

    def opened(named: str, url: str) -> tuple[Any, str]:
        system, path = arrow_files.opened(named, url)
        return _Objects(system, steps), path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_files, "opened", opened)
        patch.setattr(
            object_place, "_system", object_place._system.__wrapped__
        )  # its cache has clients that nobody counts
        yield steps


class _Objects:
    """A file system of Arrow, or a stream into it: an object that is put appears when the stream is closed."""

    def __init__(self, real: Any, steps: Steps) -> None:
        self._real = real
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return found if name in ("write", "flush") else _counting(found, self._steps)

    def open_output_stream(self, path: str) -> Any:
        self._steps.before()
        return _Objects(self._real.open_output_stream(path), self._steps)


def _counting(call: Any, steps: Steps) -> Any:
    def counting(*arguments: Any, **settings: Any) -> Any:
        steps.before()
        return call(*arguments, **settings)

    return counting


def every_step(work: Callable[[int], bool], stride: int = 1) -> int:
    """Do `work` for each call, or one in `stride`, until one says False: there is no such call; the last one."""
    at = 1
    while work(at):
        at += stride
    return at - stride
