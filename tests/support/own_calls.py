"""Functions of the standard library, replaced for one test: threads that others have left in the worker call them, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def as_seen(module: ModuleType, **replaced: Any) -> Any:
    """A module with some other functions, for the name that one module of ours has for it:
    ``patch.setattr(standby_keeper, "time", as_seen(time, monotonic=...))``."""
    return SimpleNamespace(**vars(module) | replaced)


def replace_call(patch: pytest.MonkeyPatch, owner: Any, name: str, by: Callable[..., Any]) -> None:
    """Replace a function for this thread and those that are yet to begin; those that are there call what they called."""
    real = getattr(owner, name)
    others = set(threading.enumerate()) - {threading.current_thread()}

    def chosen(*arguments: Any, **settings: Any) -> Any:
        return (real if threading.current_thread() in others else by)(*arguments, **settings)

    patch.setattr(owner, name, chosen)
