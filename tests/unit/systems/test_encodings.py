"""Databases that are not of UTF-8: a text is what it is, or refused by table, column and row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import QuerySource, TableRead, TableWriter
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import executor_of
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.postgres

WORDS = {"café": r"E'caf\303\251'", "in LATIN1": r"E'caf\351'"}
TEXTS = [None, "a", "café"]


class Shop:
    """Table `t` of three texts, by its id."""

    def __init__(self, url: str, options: str = "") -> None:
        self.url = url
        self.connections = Connections("p", {"shop": url + options}, WriterIdentity("run", 1, 1.0), 1)

    def of_query(self) -> list[Any]:
        return self._rows(QuerySource("shop", "SELECT x, id FROM t", columns={"x": "text", "id": "int"}, order_by="id"))

    def of_table(self) -> list[Any]:
        return self._rows(QuerySource("shop", table="t", order_by="id"))

    def of_read(self, *keys: str) -> list[Any]:
        read = TableRead("shop", "t", key="x" if keys else "id")
        found = self.connections.read(read, pa.array(keys or [1, 2, 3]))
        return list(found.sort_by("id")["x"].to_pylist())

    def _rows(self, source: QuerySource) -> list[Any]:
        batches = source.read_from(self.connections.source("shop"), {}, source.action({}), 0)
        return list(pa.concat_tables([batch.table for batch in batches])["x"].to_pylist())

    def write(self, *texts: str) -> list[Any]:
        change(self.url, "CREATE TABLE w (n BIGINT, x TEXT)")
        table = pa.table({"n": list(range(len(texts))), "x": list(texts)})
        opening = PendingWrite("save", "shop", 1, {"action": "begin"}, 0, b"")
        insert = PendingWrite("save", "shop", 2, {"action": "insert"}, len(texts), encode(table))
        writer = executor_of("save", TableWriter("shop", "w", on_new_run="append"), self.connections)
        writer.execute([opening, insert], 0, threading.Event())
        return [row[0] for row in rows_of(self.url, "SELECT x FROM w ORDER BY n")]


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(encoding: str, word: str, options: str = "") -> Shop:
        url = postgres_server.new_database(migrated=False, encoding=encoding)
        change(url, "CREATE TABLE t (id INT, x TEXT)")
        change(url, f"INSERT INTO t VALUES (1, NULL), (2, 'a'), (3, {word})")
        made.append(Shop(url, options))
        return made[-1]

    yield make
    for one in made:
        one.connections.close()
        postgres_server.drop_database(one.url)


def test_texts_of_a_known_encoding_are_what_they_are(shop: Callable[..., Shop]) -> None:
    one = shop("LATIN1", WORDS["in LATIN1"])
    assert one.of_query() == one.of_table() == one.of_read() == TEXTS
    assert one.of_read("a", "café", "漢") == ["a", "café"], "no row of it can have the last key"
    assert one.write("a", "café") == ["a", "café"]


def test_a_text_that_an_encoding_does_not_have_is_refused_by_column_and_row(shop: Callable[..., Shop]) -> None:
    one = shop("LATIN1", WORDS["in LATIN1"])
    with pytest.raises(
        WriteRefused, match=r"table 'w', column 'x' \(text\), write action 2, row 1 .*does not have '漢'"
    ):
        one.write("a", "漢字")
    assert rows_of(one.url, "SELECT * FROM w") == []


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_texts_of_an_unknown_encoding_are_refused_by_column_and_row(shop: Callable[..., Shop], word: str) -> None:
    one = shop("SQL_ASCII", word)
    way = r"SQL_ASCII.*\?client_encoding=UTF8"
    with pytest.raises(ConfigurationError, match=rf"query of a source, column 'x', row 2 .*where id = 3.*{way}"):
        one.of_query()
    with pytest.raises(ConfigurationError, match=rf"source of table 't', column 'x', row 2 .*where id = 3.*{way}"):
        one.of_table()
    with pytest.raises(
        ConfigurationError, match=rf"the read of table 't' of connection 'shop', column 'x', row .*{way}"
    ):
        one.of_read()
    with pytest.raises(ConfigurationError, match=rf"the read of table 't' .*key column 'x': 'café': .*{way}"):
        one.of_read("a", "café")
    assert one.of_read("a") == ["a"]
    with pytest.raises(WriteRefused, match=rf"table 'w', column 'x' \(text\), write action 2, row 1 .*{way}"):
        one.write("a", "café")


def test_a_url_says_how_the_texts_of_an_unknown_encoding_are_written(shop: Callable[..., Shop]) -> None:
    for named, word in (("UTF8", WORDS["café"]), ("LATIN1", WORDS["in LATIN1"])):
        one = shop("SQL_ASCII", word, f"?client_encoding={named}")
        assert one.of_query() == one.of_table() == one.of_read() == TEXTS
        assert one.of_read("a", "café") == ["a", "café"]
    one.write("a")
