"""The days of clicks are the same each time; the check sees a row that is missing, doubled or changed; and what is done."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from airflow_logio.dataflow.writers.folder_days import DAYS as RECORDS
from airflow_logio.dataflow.writers.folder_days import DayReceipt, DayRun, line_of
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle
from airflow_logio.protocol.folder_rules import NamedFile
from airflow_logio.protocol.states import GroupState
from demo.checks import CheckResult, Comparison, check_clicks
from demo.clicks import DAYS, clicks_folder, late_file
from demo.data import parquet_file
from demo.demonstration import Followed, Killer, StepDone, Verdict
from demo.examples import AFTER, BEFORE, Step, example, replace_once
from demo.places import Places
from demo.rest import Airflow

SHIPPED = Path(__file__).parents[2] / "dags"
PIPELINE = "pipelines/clicks.py"
ALL = "read_parquet('{}/web/*/*.parquet', hive_partitioning = true, hive_types = {{'dt': DATE}})"
OWN = "strftime(timezone('Europe/Berlin', ts), '%Y-%m-%d') = dt::VARCHAR"


def query(text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        return database.execute(text).fetchall()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks_folder(tmp_path_factory.mktemp("data") / "clicks", lambda _: None)


def test_each_day_has_its_clicks_and_late_ones_of_the_day_before(made: Path, tmp_path: Path) -> None:
    """By the transactions: the second day has 23 hours, from 23:00 to 22:00 UTC."""
    late_file(Path(shutil.copytree(made, tmp_path / "all")))
    bought = f"(SELECT row_number() OVER () - 1 AS id, * FROM read_parquet('{parquet_file('transactions')}'))"
    begins = {"2017-03-25": "2017-03-24 23:00", "2017-03-26": "2017-03-25 23:00", "2017-03-27": "2017-03-26 22:00"}
    ends = [*list(begins.values())[1:], "2017-03-27 22:00"]
    for (day, begin), end in zip(begins.items(), ends, strict=True):
        wanted = f"""SELECT count(*), sum(id) FROM {bought}
            WHERE transaction_timestamp >= '{begin}' AND transaction_timestamp < '{end}' AND id % 50 <> 0"""
        found = f"SELECT count(*), sum(id) FROM {ALL.format(tmp_path / 'all')} WHERE dt = '{day}' AND {OWN}"
        assert query(found) == query(wanted), day
    late = query(
        f"SELECT dt::VARCHAR, count(*), min(id % 50 = 0) FROM {ALL.format(made)} WHERE NOT {OWN} GROUP BY 1 ORDER BY 1"
    )
    assert [day for day, many, _ in late if many > 50] == list(begins) and all(row[2] for row in late)
    ids = query(f"SELECT count(*), count(DISTINCT id) FROM {ALL.format(tmp_path / 'all')}")
    assert ids[0][0] == ids[0][1]


def test_they_are_the_same_each_time_and_one_file_is_late(made: Path, tmp_path: Path) -> None:
    said: list[str] = []
    again = clicks_folder(tmp_path / "clicks", said.append)
    assert clicks_folder(again, said.append) == again and len(said) == 1
    names = sorted(str(path.relative_to(made)) for path in made.rglob("*.parquet"))
    assert len(names) == 12
    for name in names:
        assert (made / name).read_bytes() == (again / name).read_bytes(), name
    late = late_file(again)
    assert late.parent.name == f"dt={DAYS[0]}" and late == sorted(late.parent.iterdir())[-1]


# --- the check --------------------------------------------------------------------------------------------------------

NEW, OLD = "a7.keep.000000000002.00000", "a6.keep.000000000002.00000"
"""Names of files, as a `DatasetWriter` gives them."""
WHAT = ("lake/clicks", "lake/late_clicks", "top")


@pytest.fixture(scope="module")
def right(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lake and warehouse as they must be, by SQL of this test's own; the second day is without coupons."""
    root = tmp_path_factory.mktemp("right")
    for folder, which in (("clicks", OWN), ("late_clicks", f"NOT {OWN}")):
        for day in DAYS:
            where = root / folder / f"day={day}"
            where.mkdir(parents=True)
            mine = f"SELECT id, ts, visitor, page FROM {ALL.format(made)} WHERE dt = '{day}' AND {which}"
            query(f"COPY ({mine}) TO '{where}/{NEW}.parquet' (FORMAT parquet)")
            query(f"COPY (SELECT * FROM ({mine}) LIMIT 9) TO '{where}/{OLD}.parquet' (FORMAT parquet)")
            counts(root / folder, day, NEW)
    with closing(sqlite3.connect(root / "warehouse.db")) as warehouse, warehouse:
        warehouse.execute("CREATE TABLE top (day, rank, page, clicks)")
        for day in DAYS:
            most = f"""SELECT page, count(*) FROM {ALL.format(made)} WHERE dt = '{day}' AND {OWN}
                AND (dt <> '{DAYS[1]}' OR page NOT LIKE '/coupon%') GROUP BY page ORDER BY 2 DESC, 1 LIMIT 10"""
            rows = [(str(day), rank, *row) for rank, row in enumerate(query(most), 1)]
            warehouse.executemany("INSERT INTO top VALUES (?, ?, ?, ?)", rows)
    return root


def counts(folder: Path, day: date, *names: str) -> None:
    """The receipt of the day: these files count, and no others."""
    scope = f"day={day}"
    run = DayRun(7, line_of("log", "clicks"), "a7")
    files = tuple(
        NamedFile(f"{scope}/{one}.parquet", (folder / scope / f"{one}.parquet").stat().st_size, 1) for one in names
    )
    (folder / RECORDS / scope).mkdir(parents=True, exist_ok=True)
    (folder / RECORDS / scope / run.claim).touch()
    receipt = DayReceipt(run, "keep", len(files) + 2, scope, files, frozenset())
    (folder / RECORDS / scope / run.receipt("keep")).write_text(json.dumps(receipt.says()))


@pytest.fixture
def lake(right: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(right, tmp_path / "lake"))


def checked(lake: Path, made: Path, *changed: date) -> CheckResult:
    return check_clicks(lake, f"sqlite:///{lake / 'warehouse.db'}", made, changed)


def test_what_is_right_is_exact_and_each_day_has_the_code_that_computed_it(lake: Path, made: Path) -> None:
    result = checked(lake, made, DAYS[1])
    assert tuple(one.what for one in result.comparisons) == WHAT
    assert result.exact and [one.found_rows for one in result.comparisons][2] == 30, "\n".join(result.lines())
    for changed in ((), DAYS[:2], (DAYS[0],)):
        result = checked(lake, made, *changed)
        assert [one.what for one in result.comparisons if not one.exact] == ["top"], (
            "coupons are among the ten of each day"
        )


@pytest.mark.parametrize(
    "harm", ["old files count as well", "a file is not named", "a late click is lost", "a row more"]
)
def test_what_is_wrong_is_named(lake: Path, made: Path, harm: str) -> None:
    harms: dict[str, tuple[Callable[[], object], str]] = {
        "old files count as well": (lambda: counts(lake / "clicks", DAYS[0], OLD, NEW), "lake/clicks"),
        "a file is not named": (lambda: counts(lake / "clicks", DAYS[2]), "lake/clicks"),
        "a late click is lost": (lambda: counts(lake / "late_clicks", DAYS[1], OLD), "lake/late_clicks"),
        "a row more": (lambda: execute(lake, "INSERT INTO top VALUES ('2017-03-28', 1, '/x', 1)"), "top"),
    }
    do, what = harms[harm]
    do()
    assert [one.what for one in checked(lake, made, DAYS[1]).comparisons if not one.exact] == [what]


def execute(lake: Path, statement: str) -> None:
    with closing(sqlite3.connect(lake / "warehouse.db")) as warehouse, warehouse:
        warehouse.execute(statement)


def test_a_lake_that_is_not_there_is_told(lake: Path, made: Path) -> None:
    shutil.rmtree(lake / "clicks")
    with pytest.raises(ConfigurationError, match=r"the lake .* cannot be compared with"):
        checked(lake, made)


# --- what is done -----------------------------------------------------------------------------------------------------


class Recorder(Airflow):
    """Takes every call, and has three runs of a backfill."""

    def __init__(self) -> None:
        super().__init__("", lambda: None)
        self.calls: list[tuple[str, str]] = []

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self.calls.append((method, path))
        if path.startswith("/api/v2/backfills?"):
            return {"backfills": [{"id": 3, "completed_at": None}, {"id": 2, "completed_at": "2026-03-01T00:00:00Z"}]}
        return {"dag_runs": [{"partition_key": str(day), "dag_run_id": f"of {day}"} for day in reversed(DAYS)]}


def test_three_days_at_once_then_two_of_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code changes in a copy of the DAGs, before the second day is cleared; a file is late before the first one is."""
    places = Places(tmp_path, Path(shutil.copytree(SHIPPED, tmp_path / "dags")), "", "")
    daily, airflow, said = example("logio_daily"), Recorder(), list[str]()
    params = daily.prepare(places, said.append)
    late = Path(params["data"]) / "web" / f"dt={DAYS[0]}"
    steps = daily.steps(places, params, "demo", said.append)
    monkeypatch.setattr("demo.examples.check_clicks", lambda *given: given[3])

    first = next(steps)
    assert first.begin(airflow) == [f"of {day}" for day in DAYS] and first.kills
    assert ("PUT", "/api/v2/backfills/3/cancel") in airflow.calls and set(first.check()) == set()  # type: ignore[call-overload]
    second = next(steps)
    assert BEFORE not in (places.dags / PIPELINE).read_text() and len(list(late.iterdir())) == 4
    assert second.begin(airflow) == [f"of {DAYS[1]}"] and set(second.check()) == {DAYS[1]}  # type: ignore[call-overload]
    third = next(steps)
    assert len(list(late.iterdir())) == 5
    assert third.begin(airflow) == [f"of {DAYS[0]}"] and set(third.check()) == set(DAYS[:2])  # type: ignore[call-overload]
    assert [path.rpartition("/")[2] for _, path in airflow.calls].count("clear") == 2
    assert next(steps, None) is None


def test_the_change_of_code_is_another_pipeline_module(tmp_path: Path) -> None:
    code = tmp_path / "clicks.py"
    shutil.copy(SHIPPED / PIPELINE, code)
    replace_once(code, BEFORE, AFTER)
    bundle.load(bundle.parse_ref(f"{code}:clicks")).validate()
    with pytest.raises(ConfigurationError, match="0 times, and should have it once"):
        replace_once(code, BEFORE, AFTER)


def test_one_driver_is_killed_once() -> None:
    said: list[str] = []
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        kill = Killer(said.append)
        kill(looked_at("new", None))
        kill(looked_at(GroupState.RUNNING, children[0].pid))
        kill(looked_at(GroupState.RUNNING, children[1].pid))
        assert children[0].wait(90) == -signal.SIGKILL and children[1].poll() is None
        assert said == [f"kill -9 {children[0].pid}: the driver of group all, 2017-03-25"]
    finally:
        for child in children:
            child.kill()
            child.wait()


def looked_at(state: Any, pid: int | None) -> Any:
    identity = None if pid is None else SimpleNamespace(pid=pid)
    view = SimpleNamespace(name="all", status=SimpleNamespace(state=state, identity=identity))
    return SimpleNamespace(groups=[view], run=SimpleNamespace(spec=SimpleNamespace(partition="2017-03-25")))


def test_the_verdict_is_of_all_steps() -> None:
    def done(what: str, state: str, *differing: int, compared: bool = True) -> StepDone:
        result = CheckResult(tuple(Comparison("top", 9, 9, many, ()) for many in differing))
        step = Step(what, lambda _: [], lambda: result)
        followed = (Followed("run", state, None, None, 0.0, 1.0),)
        return StepDone(step, followed, Verdict(state, result if compared else None))

    good, wrong = done("one", "success", 0), done("two", "success", 1)
    assert str(Verdict.of_all([good, good])) == "exact"
    assert (
        str(Verdict.of_all([good, wrong])) == "NOT exact: two: top; exact: one: top; the DAG run has ended as success"
    )
    assert str(Verdict.of_all([good, done("two", "failed", 0)])).startswith(
        "exact: one: top, two: top; but the DAG run"
    )
    nothing = Verdict.of_all([good, done("two", "failed", compared=False)])
    assert str(nothing).startswith("NOT checked") and not nothing.is_good
