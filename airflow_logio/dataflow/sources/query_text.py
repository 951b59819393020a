"""The text of a SELECT: where it ends, which parameters it has, and what in it is no part of its form."""

from __future__ import annotations

import re

from airflow_logio.errors import PipelineDefinitionError

_OPAQUE = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Texts, quoted names and comments."""
_COMMENTS = ("--", "/*")
_PARAMETER = re.compile(r"(?<![:\w\\]):([A-Za-z_]\w*)(?!:)")
_BEGINNINGS = ("select", "with", "values", "table")
_TARGET = r"(?:only\s+)?\w+(?:\s*\.\s*\w+)*(?:\s*\*)?(?:\s+(?:as\s+)?\w+)?"
"""What UPDATE changes: a name, maybe of a schema, maybe with an alias."""
_CHANGE = re.compile(rf"\bdelete\s+from\b|\bupdate\s+{_TARGET}\s+set\b|(?<![.:\w])(?<!\bas\s)into\b")
"""INTO is a keyword, of INSERT, MERGE, REPLACE and SELECT, unless it names a column (``t.into``, ``AS into``)."""
_END = "; \r\n\t"


def check_select(query: str) -> None:
    """Raises PipelineDefinitionError for what is visibly not one SELECT; the database judges the rest."""
    plain = _form(query).strip().rstrip(_END).lower()
    first = next(iter(re.findall(r"\w+", plain)), "")
    if first not in _BEGINNINGS or _CHANGE.search(plain):
        raise PipelineDefinitionError(
            f"a QuerySource reads: its query is one SELECT, and {query.strip()[:60]!r} is none. What changes a database is "
            "a writer's (docs/how-to/write-a-writer.md)"
        )
    if ";" in plain:
        raise PipelineDefinitionError(
            f"the query of a QuerySource is one SELECT, and {query.strip()[:60]!r} is several"
        )


def bare(query: str) -> str:
    """The query without the semicolons and comments at its end, so that it can stand in parentheses."""
    shape = _OPAQUE.sub(lambda found: (" " if found[0].startswith(_COMMENTS) else "x") * len(found[0]), query)
    return query[: len(shape.rstrip(_END))].lstrip()


def parameters(query: str) -> frozenset[str]:
    """The names of its parameters, written ``:name``."""
    return frozenset(_PARAMETER.findall(_form(query)))


def without_colons(statement: str) -> str:
    """The statement for `sqlalchemy.text`: a colon in a text, a quoted name or a comment begins no parameter there."""
    return _OPAQUE.sub(lambda found: found[0].replace(":", r"\:"), statement)


def _form(query: str) -> str:
    """Without comments, and one letter in place of each text and quoted name."""
    return _OPAQUE.sub(lambda found: " " if found[0].startswith(_COMMENTS) else " x ", query)
