"""Arrow and numpy, imported on first use: a DAG file declares sources, windows and writers, and handles no records.

Modules that a DAG file needs take `pa`, `pc` and `np` from here, and use none of them while they are imported. These two cost
more than the rest of what a DAG file imports of this package, and Airflow imports it for every segment of every task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np", "pa", "pc"]


class _OnFirstUse(ModuleType):
    """Stands for a module until something of it is asked for; from then on it is a plain module with the same contents.

    It is not in `sys.modules`: other libraries look there for what is loaded. Two threads may ask for the first time at
    once: both find the whole module.
    """

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        # What is added to the module later, a submodule for example, is found by the second.
        vars(self).update(vars(module), __getattr__=partial(getattr, module))
        self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(module, name)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """As cloudpickle does for a module: what unpickles it gets the module itself."""
        return import_module, (self.__name__,)


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    np, pa, pc = (_OnFirstUse(name) for name in ("numpy", "pyarrow", "pyarrow.compute"))
