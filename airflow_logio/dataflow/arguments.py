"""Arguments that an author gives and nothing takes: refused with the name that was probably meant, not as a TypeError."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.errors import PipelineDefinitionError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


_OURS = str(Path(__file__).parents[1]) + "/"
_INSTEAD = {
    "on_conflict": (
        " A TableWriter inserts, so that a key that comes twice is seen; to update rows by their key, write mode='upsert'"
    ),
    "slide": " Windows do not overlap, so there are none that slide",
}
"""What to do where an argument is missed that other systems have."""


def with_told_arguments(public: Any) -> Any:
    """A public function, or a class whose constructor and methods for authors, tell what is wrong with their arguments.

    A class stays the same object; a function is wrapped. Anything else is returned as it is.
    """
    if inspect.isfunction(public):
        return _telling(public, public.__name__)
    if isinstance(public, type) and inspect.isfunction(vars(public).get("__init__")):
        public.__init__ = _telling(public.__init__, public.__name__)  # type: ignore[misc]
    return public


def with_told_methods(public: type) -> None:
    """The same for the public methods of a class, which an author calls."""
    for name, method in list(vars(public).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(public, name, _telling(method, f"{public.__name__}.{name}"))


def _telling(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            if flaw := _flaw(function, args, kwargs):
                raise PipelineDefinitionError(f"{_caller()}{what}: {flaw}") from None
            raise

    return called


def _caller() -> str:
    """File and line of the author's call; empty if it is one of this package."""
    frame = sys._getframe(2)
    file = frame.f_code.co_filename
    return "" if file.startswith(_OURS) else f"{file}, line {frame.f_lineno}: "


def _flaw(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What is wrong with the arguments themselves; None if nothing is, so that the error came from further inside."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [name for name, one in signature.parameters.items() if one.kind in _NAMED and name != "self"]
        for given in kwargs:
            if given not in names:
                hint = did_you_mean(given, names) or _INSTEAD.get(given, "")
                return f"there is no argument {given!r}; there are {quoted(names)}.{hint}"
        return f"{error}; the arguments are {quoted(names)}"
    return None
