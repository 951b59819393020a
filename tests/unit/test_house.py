"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import grimp
import pytest

import airflow_logio

PACKAGE = Path(airflow_logio.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 800
"""A class that is one thing may fill its module."""
AIRFLOW_FOLDERS = ("hooks", "operators", "sensors", "triggers")
PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("airflow.md", "correctness.md")]
"""Pages that name the tests which show what they say."""


def test_modules_stay_small() -> None:
    lines = {module: len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES}
    long = {str(module.relative_to(PACKAGE)): count for module, count in lines.items() if count > LONGEST}
    assert not long, f"split these by what they know, not by length (at most {LONGEST} lines): {long}"


SHORT = 60
"""Lines below which a module needs a second user, or is part of its only one."""
LOADED_BY_NAME = {"asset_uris.py"}
"""By Airflow, which provider info tells of it."""


def test_a_short_module_has_a_second_user() -> None:
    """Airflow's own folders, migrations and programs are loaded by others than modules of the package."""
    graph = grimp.build_graph("airflow_logio", exclude_type_checking_imports=False, cache_dir=None)
    alone = []
    for module in MODULES:
        place = module.relative_to(PACKAGE)
        elsewhere = {*AIRFLOW_FOLDERS, "migrations", "application"} & set(place.parts)
        if module.name.startswith("_") or elsewhere or str(place) in LOADED_BY_NAME:
            continue
        name = ".".join(("airflow_logio", *place.with_suffix("").parts))
        short = len(module.read_text(encoding="utf-8").splitlines()) < SHORT
        if short and len(graph.find_modules_that_directly_import(name)) < 2:
            alone.append(str(place))
    assert alone == [], "fold each into the module that uses it"


def _wing(module: Path) -> str:
    """The folder directly below the package."""
    return module.relative_to(PACKAGE).parts[0]


def test_a_module_name_stands_for_one_thing_within_its_wing() -> None:
    """Airflow names the modules in its own folders."""
    named = [m for m in MODULES if not m.name.startswith("__") and m.parts[-2] != "versions"]
    ours = [m for m in named if _wing(m) not in AIRFLOW_FOLDERS]
    places: dict[tuple[str, str], set[str]] = {}
    for module in ours:
        folder = str(module.parent.relative_to(PACKAGE))
        places.setdefault((_wing(module), module.name), set()).add(folder)
    twice = {name: sorted(folders) for (_, name), folders in places.items() if len(folders) > 1}
    assert not twice, f"rename one of each: {twice}"


def test_a_public_class_name_stands_for_one_thing_within_its_wing() -> None:
    places: dict[tuple[str, str], set[str]] = {}
    for module in MODULES:
        place = str(module.relative_to(PACKAGE))
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault((_wing(module), node.name), set()).add(place)
    twice = {name: sorted(found) for (_, name), found in places.items() if len(found) > 1}
    assert not twice, f"rename one of each: {twice}"


def test_a_command_that_can_be_typed_stands_in_backticks() -> None:
    """The command that shows it adds the log to it (`airflow_logio.commands`)."""
    bare = re.compile(r"(?<![`\"'])\blogio (?:run|retry|stop|fresh|status|logs|lineage|scale|tend|gc) \{")
    found = [f"{m.name}: {one}" for m in MODULES for one in bare.findall(m.read_text(encoding="utf-8"))]
    assert not found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Packages count as modules here, and imports inside functions count; those for type checkers alone do not."""
    graph = grimp.build_graph("airflow_logio", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        order = tuple(TopologicalSorter(imported).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")
    assert len(order) > len(MODULES) / 2


@pytest.mark.parametrize("package", ["errors", "protocol.group", "store", "dataflow", "contrib.paper_api"])
def test_the_core_loads_neither_airflow_nor_spark(package: str) -> None:
    """In a process of its own: what import-linter says of the source, seen at run time (optional imports included)."""
    program = (
        f"import sys, airflow_logio.{package}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'airflow', 'pyspark'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_port_loads_no_database() -> None:
    """`open_store` loads the adapter, and with it SQLAlchemy, when a log is opened."""
    program = (
        "import sys, airflow_logio.store, airflow_logio.store.port\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'sqlalchemy', 'alembic', 'psycopg2'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


PUBLIC = re.findall(
    r"\w+",
    """
    AllOfRun BatchGenerator BatchOperator ByKey CheckableWriter ConditionalWriter ConnectedSource Count DatasetWriter Days
    DeltaSource DeltaWriter Dispatcher EveryEvents External FolderSource FrameOperator FunctionOperator FunctionRead Group
    Hours
    IdempotentWriter InputEvent InputSet LeastLoaded LineageScope ManualOperator Marker Merger Node Operator
    OwnPartition ParquetSource ParquetWriter Partition Pipeline
    PortTable PublishedFile QuerySource RangeConnection RangeSource Replicated RoundRobin SinkOperator SourceBatch
    SourceConnection SourceOperator SparkSource StatefulOperator StatelessOperator Sums Synchronized TableRead TableSource
    TableWriter Tumbling Window WindowedOperator WriteAction WriterOperator __version__
    filtered from_every from_one generate joined lineage_paths lineage_ports open_store published_files selected stateless
    summed window_start
    """,
)
"""What `from airflow_logio import ...` offers. A name that is taken away is announced in CHANGELOG.md."""


def test_the_public_names_are_these() -> None:
    assert sorted(airflow_logio.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(airflow_logio))
    assert not [name for name in PUBLIC if getattr(airflow_logio, name, None) is None]
    with pytest.raises(AttributeError, match="module 'airflow_logio' has no attribute 'Pipelin'"):
        _ = airflow_logio.Pipelin


def test_a_public_name_loads_neither_airflow_nor_spark_nor_a_database_driver() -> None:
    """One process imports them one after the other, and says after each of them what has been loaded."""
    program = (
        "import importlib, sys\n"
        "heavy = {'airflow', 'pyspark', 'sqlalchemy', 'alembic', 'psycopg2', 'sqlite3', 'duckdb'}\n"
        "def loaded(): return heavy & {name.partition('.')[0] for name in sys.modules}\n"
        "import airflow_logio\n"
        "assert not [name for name in sys.modules if name.startswith('airflow_logio.')], 'the root imports a module'\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules)\n"
        "for name in airflow_logio.__all__:\n"
        "    exec(f'from airflow_logio import {name}')\n"
        "    assert not loaded(), f'{name} loads {loaded()}'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NAMES = re.compile(r"`((?:unit|store|acceptance|e2e|soak)(?:/[\w/]+)?(?:\.py)?(?:::\w+)?)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_promise_name_tests_that_are_there(page: Path) -> None:
    named = set(NAMES.findall(page.read_text(encoding="utf-8")))
    assert len(named) > 20
    missing = []
    for one in sorted(named):
        path, _, function = one.partition("::")
        found = Path(__file__).parents[1] / path
        if not found.exists() or (function and f"def {function}(" not in found.read_text(encoding="utf-8")):
            missing.append(one)
    assert not missing


TESTS = Path(__file__).parents[1]
PATCHES = ("setattr", "delattr")
OF_THE_PROCESS = {"argv", "dont_write_bytecode", "executable", "modules", "path", "stdin"}
"""Names of `sys` that a test may replace: values that no thread waits for or counts."""


def test_no_test_replaces_a_function_for_threads_that_others_have_left() -> None:
    """They call it, too: whatever is counted or refused there depends on what the worker has run before."""
    patched = {}
    for module in TESTS.rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        if "setattr(" not in text and "delattr(" not in text:
            continue
        tree = ast.parse(text)
        standard = _standard_names(tree)
        for call in filter(_is_patch, ast.walk(tree)):
            if name := _replaced(call, standard):
                patched[f"{module.relative_to(TESTS)}:{call.lineno}"] = name
    assert not patched, f"give the module of ours another one to see (tests/support/own_calls.py): {patched}"


def _standard_names(tree: ast.Module) -> set[str]:
    """What a module has imported from the standard library: modules, functions and classes, by the names that it uses."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name for one in node.names if _is_standard(one.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_standard(node.module or ""):
            names |= {one.asname or one.name for one in node.names}
    return names


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_patch(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES


def _replaced(call: ast.Call, standard: set[str]) -> str:
    """What a call replaces for the whole process, of the standard library; `""` if nothing."""
    first, second = [*map(_text, call.args[:2]), "", ""][:2]
    is_dotted = bool(call.args) and isinstance(call.args[0], ast.Constant)
    owner, _, name = first.rpartition(".") if is_dotted else (first, "", second)
    _, dot, last = owner.rpartition(".")
    is_standard = owner in standard or (_is_standard(last) and not last.startswith("_") and (is_dotted or bool(dot)))
    is_harmless = last == "sys" and name in OF_THE_PROCESS
    return f"{owner}.{name}" if is_standard and not is_harmless and not _is_ours(owner) else ""


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _is_ours(module: str) -> bool:
    path = PACKAGE.parent / Path(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
