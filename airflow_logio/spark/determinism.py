"""What several jobs must not compute differently: the outputs of an operator that has several (ADR-81)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.spark.engine import is_remote
from airflow_logio.spark.session_safety import FRAMES_SINCE, GUARDED_SINCE, ONE_ATTEMPT, SHUFFLE_SAFETY

_OF_NOW = re.compile(r"\b(current_timestamp|current_date|current_time|now|localtimestamp|localtime)\(", re.IGNORECASE)
"""Deterministic to Spark within one query, and another value in the next."""
_NODES = {
    "Deduplicate": "dropDuplicates() or distinct()",
    "GlobalLimit": "limit()",
    "LocalLimit": "limit()",
    "Offset": "offset()",
    "Tail": "tail()",
    "Sample": "sample()",
    "AttachDistributedSequence": "zipWithIndex()",
    "NearestByJoin": "nearestByJoin()",
    "AsOfJoin": "an as-of join",
}
"""Node of a plan that keeps some records, or numbers them, as a shuffle has brought them → the DataFrame's method."""
_BY_ORDER = re.compile(
    rf"^[\s:|+-]*(?P<node>{'|'.join(_NODES)})\b(?! 0(?![.\d]))"
    r"|\b(?P<function>row_number|ntile|lag|lead|first|first_value|last|last_value|any_value|nth_value|max_by|min_by|mode"
    r"|collect_list|collect_set|array_agg|listagg|string_agg|percentile_approx|approx_percentile|histogram_numeric|kll_\w+)"
    r"\((?![^#()\n]*\)#\d)",  # not a column that has the name of the function which has made it
    re.MULTILINE,
)
"""What Spark takes for deterministic, and chooses among equal records anew each time; in the text of a plan.

``limit(0)`` and its like choose nothing."""
_WINDOW = " windowspecdefinition("
_OF_EQUALS = re.compile(r"\b(?:dense_|percent_)?rank\([^()\n]*\)$")
"""Functions that give equal records the same."""
_SOME_ROWS = re.compile(r"specifiedwindowframe\(RowFrame, (?!unboundedpreceding\$\(\), unboundedfollowing\$\(\))")
"""A frame of rows: which ones it begins or ends with depends on the order of equal ones."""


PUSHED, MANAGER = "spark.shuffle.push.enabled", "spark.shuffle.manager"
"""Properties of an application, which decide whether its shuffles are those that `SHUFFLE_SAFETY` protects."""
_MANAGERS = frozenset({"sort", "tungsten-sort", "org.apache.spark.shuffle.sort.sortshufflemanager"})


def check_shuffle(conf: Mapping[str, str]) -> None:
    """Refuse properties of an application that switch `SHUFFLE_SAFETY` off: Spark leaves out the full retry where shuffles
    may be pushed and merged (SPARK-54959), and only its own shuffle manager's writers compute the checksums.

    Raises `ConfigurationError`.
    """
    found = [PUSHED] if conf.get(PUSHED, "").strip().lower() == "true" else []
    found += [MANAGER] if conf.get(MANAGER, "sort").strip().lower() not in _MANAGERS else []
    if found:
        said = ", ".join(f"{name}={conf[name]}" for name in found)
        better = ", ".join(f"{PUSHED}=false" if name == PUSHED else f"{MANAGER}=sort" for name in found)
        raise ConfigurationError(
            f"{said}: with it, Spark does not notice that a task that it runs again after the loss of an executor has made "
            "other records, so that records of two computations could be mixed. Operators of mode 'dataframe' need Spark's "
            f"own shuffles: set {better} for this pipeline (its group's spark=, conf= of the operator or --conf), or in "
            "spark-defaults.conf; of a Spark Connect server where it is started"
        )


def guards_itself(session: Any) -> bool:
    """Whether Spark keeps apart what a task made, and what it made when it ran again."""
    return all(session.conf.isModifiable(name) for name in SHUFFLE_SAFETY)


def check_safety(session: Any) -> None:
    """Refuse a Spark that would not keep apart what a task made, and what it made when it ran again, and of which this cannot
    be found out.

    Raises `ConfigurationError`.
    """
    if not guards_itself(session):
        if is_remote(session):
            raise ConfigurationError(f"the Spark Connect server has Spark {session.version}{_NEEDS_GUARD}")
        check_version(session.version)
        for name, value in ONE_ATTEMPT.items():
            if (found := session.conf.get(name, "")) != value:
                raise ConfigurationError(
                    f"{name} is {found or 'not set'}, and Spark {session.version} would mix records of two computations when "
                    f"it runs a stage again after the loss of an executor: it was launched as another version. Set {name}="
                    f"{value} (--conf, or the group's spark=), or use Spark 4.2 or later"
                )
    check_shuffle({PUSHED: session.conf.get(PUSHED, "false"), MANAGER: session.conf.get(MANAGER, "sort")})


_NEEDS_GUARD = (
    ", which does not keep apart what a task makes before and after the loss of an executor, and says nothing of it to its "
    "clients. Groups with operators of mode 'dataframe' need Spark 4.2 or later there; without a server (no connect, and a "
    "master that is no sc:// address) they need Spark 4.0"
)


def check_version(version: str, *, is_served: bool = False) -> None:
    """Refuse a version of Spark that cannot evaluate chains, as one that a Spark Connect server has if `is_served`.

    Raises `ConfigurationError`.
    """
    number = version_number(version)
    if number is None:
        return
    if number < FRAMES_SINCE:
        raise ConfigurationError(
            f"operators of mode 'dataframe' need Spark 4.0 or later, and this is {version}: install pyspark>=4.0 (with "
            "pyspark-client of the same version, if that is installed), or set SPARK_HOME to a later Spark"
        )
    if is_served and number < GUARDED_SINCE:
        raise ConfigurationError(f"a Spark Connect server would have Spark {version}{_NEEDS_GUARD}")


def version_number(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None if it does not begin with them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def check_repeatable(outputs: Mapping[str, SparkFrame]) -> None:
    """Raises `OperatorFailed` if an output would not be the same if it was computed twice, as far as its plan says that.

    Each output is written by a job of its own, so that records would be in two of them, or in none. What a Python function
    returns Spark takes for determined by its arguments, unless its author says `asNondeterministic`.
    """
    for port, frame in outputs.items():
        plan, is_deterministic = analyzed(frame)
        if what := _varies_by(plan, is_deterministic):
            raise OperatorFailed(
                f"output port {port!r}, one of {len(outputs)}, depends on {what}: outputs are computed one by one, so a "
                "record could be in two of them, or in none. Let an operator with one output compute that before: its "
                "records are written once, and can be divided then"
            )


def drawn(plan: str, is_deterministic: bool) -> str:
    """What gives a plan other values each time, whatever the order of records; empty if nothing does."""
    if of_now := _OF_NOW.search(plan):
        return f"{of_now[1]}()"
    return "" if is_deterministic else "something random"


def _varies_by(plan: str, is_deterministic: bool) -> str:
    """What makes a plan another one each time; empty if nothing does."""
    if what := drawn(plan, is_deterministic):
        return what
    if by_order := _BY_ORDER.search(plan):
        node, function = by_order["node"], by_order["function"]
        return f"the order of records, by {_NODES[node] if node else f'{function}()'}"
    before, *windows = plan.split(_WINDOW)
    for window in windows:
        if _SOME_ROWS.search(window) and not _OF_EQUALS.search(before):
            return "the order of records, by a window of rows (rowsBetween)"
        before = window
    return ""


# --- what Spark says of the plan of a DataFrame, however it is reached ------------------------------------------------

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)(?:\n== Optimized Logical Plan ==|\Z)", re.DOTALL)
_UNDETERMINED = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_name"
    r"|input_file_block_\w+|java_method|reflect|try_reflect)\(",
    re.IGNORECASE,
)
"""What Spark's own plans call not deterministic. A Connect server only shows its plans, so they are found by name: a text
in a query that reads the same is taken for one."""
_FUNCTIONS = ("CommonInlineUserDefinedFunction", "CommonInlineUserDefinedTableFunction")
_FIELDS = "spark.sql.debug.maxToStringFields"
"""Spark prints only the first entries of a longer list."""
_MOST_FIELDS = "2147483647"


def analyzed(frame: Any) -> tuple[str, bool]:
    """The analyzed plan of a DataFrame as Spark prints it, and whether Spark takes it for deterministic.

    What a Python function returns Spark takes for determined by its arguments, unless its author says `asNondeterministic`.
    """
    with _whole_plans(frame.sparkSession):
        if not is_remote(frame):
            plan = frame._jdf.queryExecution().analyzed()
            return str(plan.toString()), bool(plan.deterministic())
        said = str(frame._explain_string(extended=True))
    found = _ANALYZED.search(said)
    text = found[1].partition("\n")[2] if found else said  # behind a line with the names of all columns
    return text, _UNDETERMINED.search(text) is None and _all_deterministic(
        frame._plan.to_proto(frame.sparkSession.client)
    )


_OF_MEMORY = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range", "CTERelationRef", "CommandResult"})
"""Leaves of a plan that have their records, or make them."""


def reads_elsewhere(frame: Any, root: str | None) -> bool:
    """Whether the plan of a classic DataFrame reads anything but records in memory and files below `root`: what the next
    plan's author may have written anew until then."""
    own = None if root is None else f"{_plain(root).rstrip('/')}/"
    return any(_is_elsewhere(leaf, own) for leaf in _leaves(frame._jdf.queryExecution().analyzed()))


def _leaves(plan: Any) -> Iterator[Any]:
    """Those of the plans within its expressions, too."""
    subqueries = plan.subqueriesAll()
    for one in (plan, *(subqueries.apply(place) for place in range(subqueries.size()))):
        leaves = one.collectLeaves()
        yield from (leaves.apply(place) for place in range(leaves.size()))


def _is_elsewhere(leaf: Any, root: str | None) -> bool:
    if leaf.nodeName() in _OF_MEMORY:
        return False
    if root is None or leaf.nodeName() != "LogicalRelation":
        return True
    relation = leaf.relation()
    if not relation.getClass().getName().endswith(".HadoopFsRelation"):
        return True
    paths = str(relation.location().rootPaths().mkString("\n")).split("\n")
    return not all(_plain(path).startswith(root) for path in paths)


def _plain(path: str) -> str:
    """A path of Spark: local ones come with one slash, or three, behind the scheme, or without it."""
    return f"/{path.removeprefix('file:').lstrip('/')}" if path.startswith(("file:", "/")) else path


@contextmanager
def _whole_plans(session: Any) -> Iterator[None]:
    before = session.conf.get(_FIELDS)
    session.conf.set(_FIELDS, _MOST_FIELDS)
    try:
        yield
    finally:
        session.conf.set(_FIELDS, before)


def _all_deterministic(message: Any) -> bool:
    """Whether no Python function in a plan, as it is sent, was declared otherwise."""
    if message.DESCRIPTOR.name in _FUNCTIONS and not message.deterministic:
        return False
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if isinstance(value, dict) or hasattr(value, "items"):
            inner = list(value.values())
        else:
            inner = list(value) if hasattr(value, "__len__") else [value]
        if not all(_all_deterministic(one) for one in inner if hasattr(one, "DESCRIPTOR")):
            return False
    return True
