"""docs/reference-pipelines.md: what a pipeline's author imports, from docstrings, signatures and examples that tests run.

Refuses a public name without a topic, a ready-made one whose example leaves an argument out, and a value that no example has.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

EXAMPLES = "tests/unit/dataflow/reference_examples.py"
TOPICS: dict[str, tuple[str, dict[str, str]]] = {
    "The pipeline": (
        "The graph of operators, and what its methods return.",
        dict.fromkeys(
            [
                "Pipeline",
                "Days",
                "Hours",
                "Node",
                "Group",
                "Replicated",
                "LineageScope",
                "lineage_paths",
                "lineage_ports",
            ],
            "",
        ),
    ),
    "Sources": (
        "Ready-made ones. [Write a source](how-to/write-a-source.md) says when which one suits.",
        dict.fromkeys(
            ["ParquetSource", "QuerySource", "TableSource", "FolderSource", "DeltaSource", "SparkSource"], ""
        ),
    ),
    "Functions": (
        "Most operators are functions, decorated or ready-made; `Pipeline.operator` adds them.",
        dict.fromkeys(
            ["stateless", "generate", "filtered", "selected", "summed", "joined", "Sums", "TableRead", "FunctionRead"],
            "",
        )
        | {"OwnPartition": ""}
        | {"from_one": "", "from_every": "", "window_start": "from_every"},
    ),
    "Windows": (
        "How events become Input Sets: the events, or parts of them, that one call of a `generate` function gets.",
        dict.fromkeys(["EveryEvents", "Tumbling", "Synchronized", "AllOfRun", "Window"], ""),
    ),
    "Writers and sinks": (
        "Ready-made ones.",
        dict.fromkeys(["TableWriter", "ParquetWriter", "DatasetWriter", "DeltaWriter", "published_files"], "")
        | {"PublishedFile": "published_files", "Count": ""},
    ),
    "Sources of your own": (
        "Base classes, and what their methods get and give.",
        {"SourceOperator": "", "ConnectedSource": "", "RangeSource": "", "SourceBatch": "SourceOperator"}
        | {"SourceConnection": "ConnectedSource", "RangeConnection": "RangeSource"},
    ),
    "Writers of your own": (
        "Choose the first one that the external system allows. [Write a writer](how-to/write-a-writer.md) says more.",
        dict.fromkeys(["ConditionalWriter", "IdempotentWriter", "CheckableWriter"], "")
        | {"WriteAction": "ConditionalWriter", "Marker": "ConditionalWriter", "WriterOperator": "ConditionalWriter"},
    ),
    "Operators of your own": (
        "Where a function does not do.",
        dict.fromkeys(["StatelessOperator", "StatefulOperator", "SinkOperator", "FrameOperator", "BatchGenerator"], "")
        | {"ManualOperator": "", "Operator": "", "InputEvent": "StatelessOperator", "InputSet": "StatefulOperator"}
        | {"External": "StatelessOperator", "PortTable": "StatelessOperator"},
    ),
    "What the pipeline makes": (
        "Classes of operators that you find in `pipeline.operators`, and do not make yourself.",
        dict.fromkeys(["FunctionOperator", "WindowedOperator", "BatchOperator", "Dispatcher", "Merger"], ""),
    ),
    "Replicas": (
        "Which replica gets what; see [scale a group](how-to/scale.md).",
        dict.fromkeys(["RoundRobin", "LeastLoaded", "ByKey", "Partition"], ""),
    ),
    "Scaling policies": (
        "From `airflow_logio.supervision.policies`: what a `LogioScalingController` decides by.",
        {"DS2": "", "Threshold": "", "Schedule": "", "Policy": "", "Figures": "Policy", "Decision": "Policy"},
    ),
    "The log": ("For programs that look at runs.", {"open_store": ""}),
}
"""Topic → what it is, and each name with the name whose example shows it; "": it has one of its own."""
POLICIES = TOPICS["Scaling policies"][1]
NAMELESS = {"__version__"}
VALUES = {
    "window_start": "In `depends` of a `generate` function: the output column is the start of the window.",
    "PortTable": "A pair of an output port's name and an Arrow table: what `process` and `generate` yield.",
}
"""Names that have no docstring of their own."""
READY_MADE = ("Sources", "Functions", "Windows", "Writers and sinks", "Replicas", "Scaling policies")
"""Topics whose examples show every argument."""
WITH_METHODS = {"Pipeline", "Node", "Replicated", "Window", "Partition", "Policy"}.union(
    *(TOPICS[f"{kind} of your own"][1] for kind in ("Sources", "Writers", "Operators"))
)
"""Names whose methods are implemented or called by authors."""
BUILDERS = (
    *("source", "operator", "writer", "sink", "connect", "group", "replicate", "limit", "lineage", "column_lineage"),
    "local_defaults",
)
"""Methods of `Pipeline` by which an author makes one; the others answer questions."""
HIDDEN = {
    "Pipeline": {"no_group"},
    "Operator": {"record_rules", "describe", "code", "placeholders", "sql_connections"},
    "Window": {"record_part"},
    "Policy": {"refuse", "check"},
    "RangeSource": {"action", "next_action", "read"},
}
"""Methods that the package calls, and no author need know."""
HEAD = """# Reference: pipelines

<!-- Written by .ci/pipeline_reference.py from the docstrings: change those, then `make format`. -->

What a pipeline's module imports, by topic, from `airflow_logio` if nothing else is said:
`from airflow_logio import Pipeline, ParquetSource, TableWriter, Tumbling, generate`. Examples are code that tests run.
What a DAG imports is in [the reference of operators, sensors and triggers](reference.md); the words *event*, *Input
Set* and *port* are in the [glossary](glossary.md).
"""


def page(package: ModuleType, policies: ModuleType, part: Callable[[str, str], str]) -> str:
    named = {name for _, names in TOPICS.values() for name in names}
    if differing := named.symmetric_difference({*package.__all__, *POLICIES} - NAMELESS):
        sys.exit(f".ci/pipeline_reference.py: public names and names with a topic differ in {sorted(differing)}")
    lines = [HEAD, "| topic | names |", "|---|---|"]
    for topic, (_, names) in TOPICS.items():
        lines.append(f"| [{topic}](#{slug(topic)}) | {', '.join(f'[`{name}`](#{slug(name)})' for name in names)} |")
    lines.append("| [Column types](#column-types) | `bigint`, `text`, `timestamp`, ... |")
    lines.append("")
    for topic, (sentence, names) in TOPICS.items():
        lines += [f"## {topic}", "", sentence, ""]
        for name, shown_in in names.items():
            thing = getattr(policies if name in POLICIES else package, name)
            lines += Section(name, thing, shown_in, part).lines(every_argument=topic in READY_MADE)
    return "\n".join([*lines, *column_types()]).rstrip() + "\n"


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclasses.dataclass
class Section:
    name: str
    thing: Any
    shown_in: str
    part: Callable[[str, str], str]

    def lines(self, *, every_argument: bool) -> list[str]:
        found = [f"### {self.name}", ""]
        if self.name in VALUES:
            found += [VALUES[self.name], ""]
        else:
            lead, texts = split(inspect.getdoc(self.thing) or "")
            found += [marked(lead), "", *self.arguments(texts, every_argument=every_argument)]
            if inspect.isclass(self.thing) and self.name in WITH_METHODS:
                # A pipeline is read from its example first; what is derived from a class, from its methods.
                parts = [self.attributes(), self.methods(), self.example()]
                return found + [line for lines in (parts[::-1] if self.name == "Pipeline" else parts) for line in lines]
        return found + self.example()

    def arguments(self, texts: dict[str, str], *, every_argument: bool) -> list[str]:
        if not texts:
            return []
        all_shown = not every_argument or self.shown_in or inspect.isabstract(self.thing)
        if not all_shown and (missing := set(texts) - {"fn"} - self.shown(list(texts))):
            sys.exit(f"{EXAMPLES}: part {self.name} does not show {sorted(missing)}")
        return [*table(inspect.signature(self.thing), texts), ""]

    def shown(self, arguments: list[str]) -> set[str]:
        """The arguments that its example gives."""
        found: set[str] = set()
        for call in ast.walk(ast.parse(self.part(EXAMPLES, self.name))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == self.name:
                found |= {keyword.arg for keyword in call.keywords if keyword.arg}
                found |= set(arguments[: len(call.args)])
        variable = {n for n, p in inspect.signature(self.thing).parameters.items() if p.kind is p.VAR_KEYWORD}
        return found | variable

    def attributes(self) -> list[str]:
        rows = [
            f"| `{name}` | {code(default)} | {cell(text)} |"
            for name, default, text in documented(self.thing)
            if not name.startswith("_")
        ]
        return ["| class attribute | default | meaning |", "|---|---|---|", *rows, ""] if rows else []

    def methods(self) -> list[str]:
        if self.name == "Pipeline":
            own = dict(self.own())
            sections = [method_section(self.name, name, own.pop(name)) for name in BUILDERS]
            asked = ["#### What a pipeline answers", "", *map(bullet, own.items()), ""]
            return [line for lines in [*sections, asked, views(self.thing)] for line in lines]
        abstract = list(ordered_abstract(self.thing))
        own = [one for one in self.own() if one[0] not in dict(abstract)]
        called = self.name in ("Node", "Replicated", "Marker", "WriteAction") or getattr(
            self.thing, "_is_protocol", False
        )
        title = "Its methods" if called else "Methods that have a default"
        found = ["Methods to implement:", "", *map(bullet, abstract), ""] if abstract else []
        return found + ([f"{title}:", "", *map(bullet, own), ""] if own else [])

    def own(self) -> Iterator[tuple[str, Any]]:
        for name, member in vars(self.thing).items():
            shown = isinstance(member, property) or inspect.isfunction(member)
            if self.name == "Pipeline" and isinstance(member, property):
                continue
            if shown and not name.startswith("_") and member.__doc__ and name not in HIDDEN.get(self.name, ()):
                yield name, member

    def example(self) -> list[str]:
        shown_in = self.shown_in or self.name
        if not re.search(rf"\b{self.name}\b", text := self.part(EXAMPLES, shown_in)):
            sys.exit(f"{EXAMPLES}: part {shown_in} does not have {self.name}")
        if self.shown_in:
            return [f"Used in the example of [`{shown_in}`](#{slug(shown_in)}).", ""]
        return [f"<!-- {EXAMPLES} {self.name} -->", f"```python\n{text}```", ""]


def method_section(owner: str, name: str, method: Callable[..., Any]) -> list[str]:
    """A method of `Pipeline` as a section of its own, if it has arguments."""
    lead, texts = split(inspect.getdoc(method) or "")
    signature = inspect.signature(method)
    begun = [f"#### {owner}.{name}", "", f"`{call(name, signature)}`", "", marked(lead), ""]
    return begun + ([*table(signature, texts), ""] if texts else [])


def call(name: str, signature: inspect.Signature) -> str:
    """How it is called: without types, with defaults."""
    given = [
        one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name not in ("self", "cls")
    ]
    return f"{name}{signature.replace(parameters=given, return_annotation=inspect.Signature.empty)}"


def views(cls: type) -> list[str]:
    rows = [
        f"| `{name}` | {cell(' '.join((inspect.getdoc(member) or '').split()))} |"
        for name, member in vars(cls).items()
        if isinstance(member, property)
    ]
    return ["#### Views of a pipeline", "", "| attribute | what it is |", "|---|---|", *rows, ""]


def ordered_abstract(cls: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for base in reversed(cls.__mro__):
        for name in vars(base):
            if name in getattr(cls, "__abstractmethods__", ()) and name not in seen:
                seen.add(name)
                yield name, getattr(cls, name)


def bullet(named: tuple[str, Any]) -> str:
    """A method in one item: what it does, then its arguments, then the rest."""
    name, member = named
    lead, texts = split(inspect.getdoc(member) or "")
    called = f"`{name}`" if isinstance(member, property) else f"`{call(name, inspect.signature(member))}`"
    prose, code_block = without_code(lead)
    first, _, rest = prose.partition("\n\n")
    given = "; ".join(f"`{one}`: {text.rstrip('.')}" for one, text in texts.items())
    words = " ".join([f"{called}:", first, f"({given})" if given else "", rest]).split()
    text = textwrap.fill(
        marked(" ".join(words)),
        120,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return text + (f"\n\n  ```python\n{textwrap.indent(code_block, '  ')}\n  ```\n" if code_block else "")


def without_code(text: str) -> tuple[str, str]:
    found = re.search(r"^::\n\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    if not found:
        return text, ""
    return text.replace(found[0].rstrip("\n"), "").strip(), textwrap.dedent(found[1]).strip("\n")


def documented(cls: type) -> Iterator[tuple[str, str, str]]:
    """Class attributes with a docstring below them: name, default, text."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    for one, following in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(one, ast.AnnAssign)
        ):
            default = "" if one.value is None else ast.unparse(one.value)
            yield ast.unparse(one.target), NAMED.get(default, default), inspect.cleandoc(str(following.value.value))


NAMED = {"ExecutionMode.DRIVER": "'driver'"}


def split(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says beside the arguments, and of each argument."""
    rest: list[str] = []
    texts: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if begun := re.match(r":param (\w+): (.*)", line):
            current = begun[1]
            texts[current] = begun[2]
        elif current and line.startswith("    "):
            texts[current] += " " + line.strip()
        else:
            current = ""
            rest.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), texts


def table(signature: inspect.Signature, texts: dict[str, str]) -> list[str]:
    found = ["| argument | type | default | meaning |", "|---|---|---|---|"]
    for name, text in texts.items():
        one = signature.parameters.get(name)
        stars = "" if one is None else {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = "" if one is None else type_of(one.annotation)
        default = "" if one is None or one.default is one.empty else default_of(one.default)
        found.append(f"| `{stars}{name}` | {code(kind)} | {code(default)} | {cell(text)} |")
    return found


def type_of(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return getattr(annotation, "__forward_arg__", None) or (
        annotation if isinstance(annotation, str) else str(annotation)
    )


def default_of(default: Any) -> str:
    return "{}" if repr(default) == "<factory>" else repr(default)


def column_types() -> list[str]:
    from sqlalchemy.dialects import postgresql, sqlite

    from airflow_logio.dataflow.column_types import HELD, column_type
    from airflow_logio.systems.databases.sql_types import arrow_type, sql_type

    sentence = (
        "What `columns` of `TableWriter` and `QuerySource` may say. A value that does not fit without loss is refused."
    )
    found = ["## Column types", "", sentence, ""]
    found += ["| type | holds | read as (Arrow) | in PostgreSQL | in SQLite |", "|---|---|---|---|---|"]
    for name, held in HELD.items():
        kind = column_type("", name.replace("(p,s)", "(12,2)"))
        made = [sql_type(kind).compile(dialect=one) for one in (postgresql.dialect(), sqlite.dialect())]
        texts = [code(str(one).replace("(12, 2)", "(p, s)")) for one in (arrow_type(kind), *made)]
        found.append(f"| `{name}` | {cell(held)} | {' | '.join(texts)} |")
    return found


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def cell(text: str) -> str:
    return marked(" ".join(text.split())).replace("|", "\\|")


def marked(text: str) -> str:
    """Code is in two backticks in docstrings, and in one here."""
    return text.replace("``", "`")
