"""Which modules of one folder a module imports, directly or not: found in the source text, so nothing is executed.

Only import statements count, wherever they are. What a program imports by a computed name is unknown to this search.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

OURS = "airflow_logio"


def imported_parts(root: Path, module: str) -> set[str]:
    """Top-level names in `root` (packages, modules, folders) that `module` needs, its own included.

    Names of the standard library are never taken from `root`, and this package is never among them: a driver has both.
    """
    own = module.partition(".")[0]
    todo, seen = [module], {module}
    while todo:
        name = todo.pop()
        for found in _with_parents(name):
            file = module_file(root, found)
            if file is None or file.suffix != ".py":
                continue
            for other in _imports(file, found):
                if other not in seen and _may_be_here(other, own):
                    seen.add(other)
                    todo.append(other)
    return {name.partition(".")[0] for name in seen if _is_here(root, name)}


def module_file(root: Path, module: str) -> Path | None:
    """The file of a module, or of a package's ``__init__``; None if `root` does not hold it."""
    place = root.joinpath(*module.split("."))
    for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if file.is_file():
            return file
    return None


def _is_here(root: Path, module: str) -> bool:
    top = module.partition(".")[0]
    return module_file(root, module) is not None and (root.joinpath(top).is_dir() or (root / f"{top}.py").is_file())


def _may_be_here(module: str, own: str) -> bool:
    top = module.partition(".")[0]
    return top == own or (top != OURS and top not in sys.stdlib_module_names)


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


def _imports(file: Path, module: str) -> Iterator[str]:
    """Absolute names of all that the file may import; ``from a import b`` may mean module ``a.b``."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # it cannot be imported either
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])
