"""SQL that is compiled once in a process, however many engines its tests make.

Each test has a database of its own, and with it an engine, whose cache of compiled statements is empty: compiling took
almost half of the time that tests of the log on a database spend in Python. What is compiled depends on the statement and on
the dialect, so engines whose dialects are alike share it here. A driver, or a task of Airflow, compiles as ever.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.util import LRUCache

MANY = 1_000
"""Statements. Tests of tables have tables of their own, whose statements no other test needs, and which a search for garbage
would look at."""
PLAIN = (str, int, float, bool, tuple, frozenset, type(None))

_compiled: LRUCache[Any, Any] = LRUCache(MANY)


class SharedStatements:
    """The cache of one engine, which has the statements of all engines with such a dialect.

    The dialect of an engine learns from its first connection what the server can do. Nothing is compiled before.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kind: tuple[Any, ...] | None = None

    def _shared(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._kind is None:
            said = vars(self._dialect).items()
            plain = sorted((name, value) for name, value in said if isinstance(value, PLAIN))
            self._kind = (type(self._dialect), tuple(plain))
        return (self._kind, *key[1:])

    def get(self, key: tuple[Any, ...]) -> Any:
        return _compiled.get(self._shared(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        _compiled[self._shared(key)] = compiled


def install() -> None:
    """For all engines that this process makes from now on, unless they have no cache."""

    def given(engine: Engine, cache: Any) -> None:
        vars(engine)["_statements"] = cache if cache is None else SharedStatements(engine.dialect)

    # SQLAlchemy reads the names of an engine's settings from the code of its `__init__`, which is left as it is.
    Engine._compiled_cache = property(lambda engine: vars(engine)["_statements"], given)  # type: ignore[assignment]
