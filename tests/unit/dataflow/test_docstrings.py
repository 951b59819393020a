"""Docstrings of public names: docs/reference.md is made of them, and so is the help of an editor."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import airflow_logio

DATA = {"PortTable", "__version__", "window_start"}
"""Values, which have no parameters."""
BUILT = ("Pipeline", "Node")
"""Classes whose methods are called by authors, and not implemented."""
UNNAMED = {"self", "cls", "fn"}


def said(thing: Any) -> set[str]:
    return set(re.findall(r"^:param (\w+): .", inspect.getdoc(thing) or "", re.MULTILINE))


def taken(thing: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(thing).parameters) - UNNAMED


def is_ours(method: Any) -> bool:
    return inspect.isfunction(method) and method.__module__.startswith("airflow_logio.")


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Those that its author must implement, or that its user calls; of a Protocol all."""
    own = vars(cls).items()
    every = cls.__name__ in BUILT or getattr(cls, "_is_protocol", False)
    for name, method in own:
        if is_ours(method) and not name.startswith("_") and (every or getattr(method, "__isabstractmethod__", False)):
            yield name, method


PUBLIC = sorted(set(airflow_logio.__all__) - DATA)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_each_parameter_means(name: str) -> None:
    thing = getattr(airflow_logio, name)
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    assert first.endswith((".", ":")), "the first paragraph says what it is"
    wanted = set() if inspect.isclass(thing) and getattr(thing, "_is_protocol", False) else taken(thing)
    if name in ("stateless", "generate"):
        wanted.add("fn")
    assert said(thing) == wanted
    if inspect.isclass(thing):
        wrong = {n: said(m) ^ taken(m) for n, m in methods(thing) if said(m) != taken(m)}
        assert not wrong, "methods whose docstring and signature differ"
