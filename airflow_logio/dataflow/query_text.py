"""The text of a query: its parameters, its comments, and whether it visibly is one SELECT. The database judges the rest.

Texts, quoted names and comments are found as PostgreSQL and SQLite find them, because the database of a connection is
not known when a pipeline is defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_logio.dataflow.placeholders import check_no_template
from airflow_logio.errors import PipelineDefinitionError

_COMMENT, _QUOTED, _PARAMETER = "comment", "quoted", "parameter"
_TOKEN = re.compile(
    r"""
      (?P<comment>  --[^\n]* | /\* )
    | (?P<quoted>
          (?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'(?:\s*\n\s*'(?:[^'\\]|\\.|'')*')*   # with backslashes, maybe over lines
        | '(?:[^']|'')*'
        | "(?:[^"]|"")*"
        | `[^`]*`
        | (?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
    | (?P<colon>    (?!::):(?P<name>[A-Za-z_]\w*)? )
    | (?P<sign>     ::+ | [\w$]+ | \S )
    """,
    re.DOTALL | re.VERBOSE,
)
_BEFORE_A_VALUE = re.compile(
    r"all|and|any|array|as|between|by|case|collate|distinct|else|escape|filter|from|having|i?like|in|is|limit|not|offset|on|"
    r"or|returning|select|similar|some|then|to|using|values|when|where|with"
)
"""Keywords behind which a value may begin. What stands behind another word, or behind a value, is no value."""
_BEGINNINGS = ("select", "with", "values", "table")
_TARGET = r"(?:only\s+)?\w+(?:\s*\.\s*\w+)*(?:\s*\*)?(?:\s+(?:as\s+)?\w+)?"
"""What UPDATE changes: a name, maybe of a schema, maybe with an alias."""
_CHANGE = re.compile(rf"\bdelete\s+from\b|\bupdate\s+{_TARGET}\s+set\b|(?<![.:\w])(?<!\bas\s)into\b")
"""INTO is a keyword, of INSERT, MERGE, REPLACE and SELECT, unless it names a column (``t.into``, ``AS into``)."""
_END = "; \r\n\t"


def check_select(query: str, what: str = "the query of a QuerySource") -> None:
    """Raises PipelineDefinitionError for what is visibly not one SELECT; the database judges the rest."""
    check_no_template(without_comments(query), "query", ":name")
    plain = _form(query).strip().rstrip(_END).lower()
    first = next(iter(re.findall(r"\w+", plain)), "")
    if first not in _BEGINNINGS or _CHANGE.search(plain):
        raise PipelineDefinitionError(
            f"{what} is one SELECT, and {query.strip()[:60]!r} is none. What changes a database is a writer's "
            "(docs/how-to/write-a-writer.md)"
        )
    if ";" in plain:
        raise PipelineDefinitionError(f"{what} is one SELECT, and {query.strip()[:60]!r} is several")


def bare(query: str) -> str:
    """The query without the semicolons and comments at its end, so that it can stand in parentheses."""
    shape = list(query)
    for kind, begin, end in _scanned(query):
        if kind in (_COMMENT, _QUOTED):
            shape[begin:end] = (" " if kind == _COMMENT else "x") * (end - begin)
    return query[: len("".join(shape).rstrip(_END))].lstrip()


def query_parameters(query: str) -> frozenset[str]:
    """The names of its parameters, written ``:name``."""
    return frozenset(query[begin + 1 : end] for kind, begin, end in _scanned(query) if kind == _PARAMETER)


def for_sqlalchemy(query: str) -> str:
    """The query for `sqlalchemy.text`, which then takes for parameters what `query_parameters` does, and nothing else."""
    parts, done = [], 0
    for kind, begin, end in _scanned(query):
        if kind == _PARAMETER:
            parts += [_without_colons(query[done:begin]), " ", query[begin:end]]  # it must stand apart
            done = end
    return "".join(parts) + _without_colons(query[done:])


def _without_colons(text: str) -> str:
    return text.replace(":", r"\:")


def _form(query: str) -> str:
    """Without comments, and one letter in place of each text and quoted name."""
    return _replaced(query, {_COMMENT: " ", _QUOTED: " x "})


def without_comments(query: str) -> str:
    return _replaced(query, {_COMMENT: " "})


def _replaced(query: str, by: Mapping[str, str]) -> str:
    parts, done = [], 0
    for kind, begin, end in _scanned(query):
        if kind in by:
            parts += [query[done:begin], by[kind]]
            done = end
    return "".join(parts) + query[done:]


def _scanned(query: str) -> Iterator[tuple[str, int, int]]:
    """Comments, texts and quoted names, and parameters: what it is, where it begins, and where it ends."""
    place, before, before_end = 0, "", -1
    """The last word or sign, "x" for a text, a quoted name or a parameter; and where it ends."""
    brackets: list[str] = []
    while (found := _TOKEN.search(query, place)) is not None:
        begin, place, kind = found.start(), found.end(), str(found.lastgroup)
        if kind == _COMMENT:
            place = _end_of_comment(query, begin, place)
            yield _COMMENT, begin, place
            continue
        follows, within = _is_value(before), brackets[-1:] == ["["]
        if found[0] == "[" and not (follows or within or before == "array"):  # names in SQLite
            kind, place = _QUOTED, query.find("]", begin) + 1 or place
        elif kind == "colon":
            is_slice = follows and (within or before_end == begin)
            kind, place = (_PARAMETER, place) if found["name"] and not is_slice else ("sign", begin + 1)
        if kind in (_QUOTED, _PARAMETER):
            yield kind, begin, place
            before = "x"
        else:
            before = query[begin:place].lower()
            _keep(brackets, before)
        before_end = place


def _is_value(before: str) -> bool:
    """Whether what comes behind a word or sign comes behind a value."""
    if before[-1:].isalnum() or before.endswith(("_", "$")):
        return _BEFORE_A_VALUE.fullmatch(before) is None
    return before in (")", "]")


def _keep(brackets: list[str], sign: str) -> None:
    if sign in ("[", "("):
        brackets.append(sign)
    elif sign in ("]", ")") and brackets:
        brackets.pop()


def _end_of_comment(query: str, begin: int, end: int) -> int:
    """Comments of PostgreSQL nest; those of SQLite do not, and end in its way if they would not end otherwise."""
    if query.startswith("--", begin):
        return end
    depth = 0
    for sign in re.finditer(r"/\*|\*/", query[begin:]):
        depth += 1 if sign[0] == "/*" else -1
        if not depth:
            return begin + sign.end()
    return query.find("*/", end) + 2 if "*/" in query[end:] else len(query)
