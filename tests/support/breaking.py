"""Checks that are shown to notice: each broken variant names the check that must fail under it, and in what words.

A check asserts something of code that ships, and runs as a test. `Broken.is_noticed` runs it under a broken variant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Check = Callable[[], None]
Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Broken:
    """A variant that `install` breaks. `check` must then fail, with what `says` matches."""

    install: Break
    check: Check
    says: str

    def is_noticed(self, patch: pytest.MonkeyPatch) -> None:
        """Fails unless the check fails in these words: a variant that merely crashes shows nothing about the check."""
        self.install(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception), match=self.says):
            self.check()


class Variants(dict[str, Broken]):
    """The broken variants of a module of tests, by name."""

    def of(self, check: Check, says: str) -> Callable[[Break], Break]:
        """Register a function that breaks one thing, and says in its docstring what."""

        def register(install: Break) -> Break:
            assert install.__doc__, install.__name__
            self[install.__name__] = Broken(install, check, says)
            return install

        return register
