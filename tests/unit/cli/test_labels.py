"""What a read of a query is called in a tree of lineage."""

from __future__ import annotations

import pytest

from airflow_logio.cli.lineage_tree import LABEL, query_label
from airflow_logio.dataflow import QuerySource

LONG = "SELECT " + ", ".join(f"o.column_{n}" for n in range(30)) + "\n  FROM orders AS o\n WHERE o.day = :day"


@pytest.mark.parametrize(
    ("query", "label"),
    [
        ("SELECT id\n  FROM orders WHERE day = :day;", "SELECT id FROM orders WHERE day = :day"),
        (LONG, ""),
        ("SELECT '" + 300 * "x" + "' FROM y", ""),
    ],
)
def test_a_query_is_shown_as_its_author_wrote_it_with_its_beginning_and_its_end(query: str, label: str) -> None:
    source = QuerySource("shop", query, columns={"id": "bigint"}, order_by="id")
    shown = query_label(source.action({"day": "monday"})["statement"])
    assert len(shown) <= LABEL and shown.startswith("SELECT ") and "rows_of_query" not in shown
    if label:
        assert shown == label
    else:
        assert " ... " in shown and shown.endswith(" ".join(query.split())[-6:])


def test_the_words_at_the_cut_are_whole() -> None:
    shown = query_label(LONG)
    assert set(shown.replace(" ... ", " ").split()) <= set(LONG.split())
    assert shown.endswith("FROM orders AS o WHERE o.day = :day")
