"""What a run waits for that is no file: rows of a database, and what an author's own source knows; and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.databases import with_driver
from airflow_logio.dataflow import (
    Count,
    Days,
    FolderSource,
    ParquetSource,
    Pipeline,
    QuerySource,
    SourceBatch,
    SourceOperator,
    TableSource,
)
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.input_arrival import InputLook, Waiting, in_words
from tests.support.postgres import PostgresServer

NOW = datetime(2026, 3, 2, 6, tzinfo=UTC)
NEXT = "Come back later"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made = server.new_database()
    yield made
    server.drop_database(made)


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(with_driver(url))
    with engine.begin() as connection:
        for one in statements:
            connection.exec_driver_sql(one)
    engine.dispose()


def look(source: SourceOperator, url: str = "", day: str = "2026-03-01", **said: Any) -> InputLook:
    pipeline = Pipeline("clicks", partition=Days("day", zone="Europe/Berlin"), connections=["shop"])
    pipeline.sink("done", Count(), pipeline.source("web", source, **said))
    assert pipeline.partition is not None
    params = pipeline.check_params({}, pipeline.partition.key_of(day))
    return InputLook(pipeline.for_run(params), params, {"shop": url}.__getitem__)


def waiting(found: InputLook, after: timedelta = timedelta(0)) -> Waiting | None:
    return found.waiting(NOW, NOW + after, NEXT)


def what(found: InputLook) -> str | None:
    one = waiting(found)
    if one is not None:
        assert one.places is None, "no file tells it"
    return None if one is None else one.what


QUERY = "SELECT id FROM sale WHERE at >= :day_start AND at < :day_end"
SALES = {
    "query": QuerySource("shop", QUERY, columns={"id": "bigint"}, order_by="id"),
    "table of a query": QuerySource("shop", table="sale", columns={"id": "bigint"}, order_by=("id",)),
    "table that grows": TableSource("shop", "sale", append_only=True),
}


@pytest.mark.parametrize("kind", SALES)
def test_a_query_or_a_table_is_there_when_it_has_a_row(url: str, kind: str) -> None:
    execute(url, "CREATE TABLE sale (id integer primary key, at timestamp)")
    source = SALES[kind]
    said = "its query" if kind == "query" else "table sale"
    assert what(look(source, url, wait="6h")) == f"source 'web': no row yet: {said} of connection 'shop'"
    fails = look(source, url, on_empty="fail")
    with pytest.raises(ConfigurationError, match=f"'web' of pipeline 'clicks' is there, and has no row: {said}"):
        fails.check_rows()
    execute(url, "INSERT INTO sale VALUES (1, '2026-02-28 22:59:59')")
    assert (what(look(source, url, wait="6h")) is None) is (kind != "query"), "that one is of the day before"
    execute(url, "INSERT INTO sale VALUES (2, '2026-02-28 23:00:00')")
    assert what(look(source, url, wait="6h")) is None
    look(source, url, on_empty="fail").check_rows()


@pytest.mark.parametrize("kind", SALES)
def test_a_row_of_a_control_table_tells_when_all_rows_are_there(url: str, kind: str) -> None:
    execute(url, "CREATE TABLE sale (id integer primary key, at timestamp)", "CREATE TABLE load (day text, done text)")
    execute(url, "INSERT INTO sale VALUES (1, '2026-03-01 12:00:00')")
    ready = "SELECT 1 FROM load WHERE day = :day AND done = 'yes'; -- and no other"
    said = look(SALES[kind], url, wait="6h", ready=ready)
    assert what(said) is not None and "with {'day': '2026-03-01'}" in str(what(said))
    execute(url, "INSERT INTO load VALUES ('2026-03-01', 'no'), ('2026-03-02', 'yes')")
    assert what(look(SALES[kind], url, wait="6h", ready=ready)) is not None
    execute(url, "UPDATE load SET done = 'yes'")
    assert what(look(SALES[kind], url, wait="6h", ready=ready)) is None


def test_instants_of_the_partition_are_instants_in_a_query_that_tells(url: str) -> None:
    """The day of Berlin begins at 23:00 in UTC: as texts with an offset, they would lie elsewhere."""
    kind = "text" if url.startswith("sqlite") else "timestamptz"
    execute(url, f"CREATE TABLE load (until {kind})", "CREATE TABLE sale (id integer)")
    source = QuerySource("shop", table="sale", columns={"id": "bigint"})
    ready = "SELECT 1 FROM load WHERE until >= :day_end"
    execute(url, "INSERT INTO load VALUES ('2026-03-01 22:59:59')")
    if not url.startswith("sqlite"):
        execute(url, "UPDATE load SET until = '2026-03-01 22:59:59+00'")
    assert what(look(source, url, wait="6h", ready=ready)) is not None
    after = "2026-03-01 23:00:00" if url.startswith("sqlite") else "2026-03-01 23:00:00+00"
    execute(url, f"UPDATE load SET until = '{after}'")
    assert what(look(source, url, wait="6h", ready=ready)) is None


def test_a_query_that_the_database_refuses_is_refused_at_once(url: str) -> None:
    source = QuerySource("shop", table="sael", columns={"id": "bigint"})
    with pytest.raises(ConfigurationError, match=r"source 'web': the database refused .*sael"):
        waiting(look(source, url, wait="6h"))


def test_a_database_that_is_away_is_waited_for_with_the_cause() -> None:
    source = QuerySource("shop", table="sale", columns={"id": "bigint"})
    said = what(look(source, "postgresql://anna:geheim@127.0.0.1:9/shop", wait="6h"))
    assert said is not None and "Connection refused" in said and "geheim" not in said


class Till(SourceOperator):
    unavailable = (LookupError,)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self, params: Mapping[str, Any]) -> Any:
        said = (self._folder / "till").read_text()
        if said == "away":
            raise LookupError("the till is unavailable")
        if said == "broken":
            raise ZeroDivisionError(said)
        return {"open": f"the till of {params['day']} is open", "wrong": False, "": ""}.get(said)

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("open", "source 'web': the till of 2026-03-01 is open"),
        ("away", "source 'web': LookupError: the till is unavailable"),
        ("closed", None),
    ],
)
def test_a_source_of_the_authors_says_what_is_missing(tmp_path: Path, said: str, found: str | None) -> None:
    (tmp_path / "till").write_text(said)
    assert what(look(Till(tmp_path), wait="6h")) == found


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("broken", r"source 'web': missing\(\) fails: ZeroDivisionError: broken.*test_input_arrival\.py"),
        ("wrong", r"missing\(\) returned False; return what is not there in words, or None"),
        ("", r"missing\(\) returned ''"),
    ],
)
def test_an_error_of_the_author_is_no_reason_to_wait(tmp_path: Path, said: str, why: str) -> None:
    (tmp_path / "till").write_text(said)
    with pytest.raises(ConfigurationError, match=f"(?s){why}"):
        waiting(look(Till(tmp_path), wait="6h"))


@pytest.mark.parametrize("source", ["a.parquet", "*.parquet", "folder"])
def test_whether_there_are_rows_is_not_asked_of_what_is_not_there_or_torn(tmp_path: Path, source: str) -> None:
    """The run is refused for it, as ever: `on_empty` waits for nothing."""
    path, is_folder = tmp_path / source, source == "folder"
    made = FolderSource(str(path)) if is_folder else ParquetSource(str(path))
    if source == "a.parquet":
        look(made, on_empty="fail").check_rows()
    file = path / "a.parquet" if is_folder else tmp_path / "a.parquet"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"PAR1")
    with pytest.raises(ConfigurationError, match=f"source 'web': .*{tmp_path}"):
        look(made, on_empty="fail").check_rows()
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), file)
    with pytest.raises(ConfigurationError, match="is there, and has no row"):
        look(made, on_empty="fail").check_rows()
    pq.write_table(pa.table({"n": [1]}), file)
    look(made, on_empty="fail").check_rows()


def test_each_source_waits_for_as_long_as_it_may(tmp_path: Path) -> None:
    pipeline = Pipeline("two")
    sources = {
        "short": ("1h", ParquetSource(f"{tmp_path}/a.parquet")),
        "long": ("6h", FolderSource(str(tmp_path / "b"))),
    }
    for name, (wait, source) in sources.items():
        pipeline.sink(f"done_{name}", Count(), pipeline.source(name, source, wait=wait))
    pipeline.sink("rest", Count(), pipeline.source("unsaid", ParquetSource(f"{tmp_path}/c.parquet")))

    def found(hours: float) -> Waiting | None:
        return InputLook(pipeline, {}, str).waiting(NOW, NOW + timedelta(hours=hours), NEXT)

    first = found(0.5)
    assert first is not None and first.until == NOW + timedelta(hours=1)
    assert first.what == (
        f"source 'short': {tmp_path}/a.parquet is not there; source 'long': the folder {tmp_path}/b is not there"
    )
    assert [place.kind for place in first.places or ()] == ["parquet", "folder"]
    with pytest.raises(ConfigurationError) as late:
        found(1)
    assert str(late.value) == (
        f"the input of source 'short' of pipeline 'two' is not there: {tmp_path}/a.parquet is not there. It was waited for "
        "since 2026-03-02 06:00:00 UTC, 1 h 0 min, and wait='1h' of the source is over. Nothing was started. Come back later"
    )
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    second = found(1)
    assert second is not None and second.until == NOW + timedelta(hours=6)
    with pytest.raises(ConfigurationError, match=r"source 'long' .* 6 h 5 min"):
        found(6 + 5 / 60)
    (tmp_path / "b").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "b" / "x.parquet")
    assert found(7) is None, "it is there, however late"


def test_what_is_no_file_is_looked_for_by_the_task_even_if_files_are_missing_too(tmp_path: Path) -> None:
    (tmp_path / "till").write_text("open")
    pipeline = Pipeline("two", params={"day": str})
    pipeline.sink("a", Count(), pipeline.source("file", ParquetSource(f"{tmp_path}/a.parquet"), wait="6h"))
    pipeline.sink("b", Count(), pipeline.source("till", Till(tmp_path), wait="6h"))
    found = InputLook(pipeline, {"day": "1"}, str).waiting(NOW, NOW, NEXT)
    assert found is not None and found.places is None


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (90_000, "25 h 0 min")]
)
def test_periods_are_said_as_people_do(seconds: float, said: str) -> None:
    assert in_words(seconds) == said
