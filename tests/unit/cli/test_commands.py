"""`logio` on a log without drivers: exit codes, sentences, what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_logio.cli import run as run_command
from airflow_logio.cli.app import main
from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import Run
from tests.support.grocery import write_slice
from tests.support.logs import SOMEBODY, finish

SALES = bundle.parse_ref(f"{Path(__file__).parents[3] / 'dags' / 'pipelines' / 'sales.py'}:sales")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LOGIO_URL", "WAREHOUSE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run in the log without a launch."""
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    transactions = write_slice(tmp_path / "transactions.parquet", 1_000)
    store = open_store(sqlite_url)
    pipeline = bundle.load(SALES)
    spec = run_spec(
        pipeline,
        SALES,
        dag_id="some_dag",
        dag_run_id="manual__1",
        params={"transactions": str(transactions)},
        connections={"warehouse": "warehouse"},
    )
    started = store.start_run(spec)
    store.dispose()
    return started


def logio(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of one command."""
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_without_a_log_the_sentence_says_what_makes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "status") == 1
    assert "there is no log" in capsys.readouterr().err
    assert not Path(".logio/logio.db").exists()


def test_wrong_usage_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert logio(monkeypatch, "run", "a.py:b", "--param", "no-equals-sign") == 2
    assert "name=value" in capsys.readouterr().err
    assert logio(monkeypatch, "lineage", "only-a-run") == 2


def test_an_error_is_one_sentence_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "run", "nowhere.py:sales") == 1
    printed = capsys.readouterr().err
    assert "there is no file nowhere.py" in printed and "Traceback" not in printed


def test_nothing_is_started_when_a_parameter_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{SALES.bundle_root / 'pipelines' / 'sales.py'}:sales"
    assert logio(monkeypatch, "run", path, "--param", "transactions=missing.parquet") == 1
    assert "cannot read Parquet file" in capsys.readouterr().err
    assert logio(monkeypatch, "status") == 0
    assert "no runs" in capsys.readouterr().out


def test_a_run_whose_tables_are_in_another_database_is_not_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sqlite_url: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("WAREHOUSE_URL", "mysql+pymysql://u:s3cret@127.0.0.1:1/d")
    transactions = write_slice(tmp_path / "transactions.parquet", 10)
    assert logio(monkeypatch, "run", str(SALES), "--param", f"transactions={transactions}") == 1
    printed = capsys.readouterr().err
    assert "TableWriter writes exactly once to PostgreSQL and" in printed and "s3cret" not in printed
    store = open_store(sqlite_url)
    assert list(store.list_runs()) == []
    store.dispose()


def test_how_long_external_systems_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, sqlite_url: str
) -> None:
    transactions = write_slice(tmp_path / "transactions.parquet", 1_000)
    supervised: list[float] = []

    def supervise(context: LaunchContext, *_: object) -> int:
        supervised.append(context.run.spec.replay_seconds)
        return 0

    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setattr(run_command, "supervise", supervise)
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)
    path = f"{SALES.bundle_root / 'pipelines' / 'sales.py'}:sales"
    command = ("run", path, "--param", f"transactions={transactions}")
    assert logio(monkeypatch, *command, "--replay-seconds", "0") == 1
    assert "replay_seconds is 0.0; give seconds, more than 0" in capsys.readouterr().err
    assert logio(monkeypatch, *command) == 0
    assert logio(monkeypatch, *command, "--replay-seconds", "1.5", "--run-id", "mine") == 0
    assert logio(monkeypatch, *command, "--run-id", "mine") == 0
    assert "keeps the replay seconds" not in capsys.readouterr().err
    assert logio(monkeypatch, *command, "--replay-seconds", "9", "--run-id", "mine") == 0
    assert "keeps the replay seconds it was started with: 1.5" in capsys.readouterr().err
    assert supervised == [900.0, 1.5, 1.5, 1.5]


def test_status_lists_runs_and_describes_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "status") == 0
    assert "manual__1" in capsys.readouterr().out
    assert logio(monkeypatch, "status", run.uid[:6]) == 0
    assert run.uid in capsys.readouterr().out
    assert logio(monkeypatch, "status", "manual__1", "--json") == 0
    described = json.loads(capsys.readouterr().out)
    assert described["uid"] == run.uid
    assert {group["state"] for group in described["groups"].values()} == {"new"}
    assert logio(monkeypatch, "status", "nonsense") == 1


def test_stop_marks_groups_without_drivers_halted(
    run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "stop", "manual__1", "totals") == 0
    assert "totals: halted" in capsys.readouterr().out
    store = open_store(sqlite_url)
    states = {status.group: status.state for status in store.groups(run.run_id)}
    store.dispose()
    assert states.pop("totals") is GroupState.HALTED
    assert set(states.values()) == {GroupState.NEW}


def test_stop_drains_a_run_whoever_supervises_it(
    run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "stop", "manual__1", "--drain", "--timeout", "0") == 1
    printed = capsys.readouterr()
    assert "ingest: new" in printed.out and "the request stands" in printed.err
    assert logio(monkeypatch, "status", "manual__1") == 0
    assert "new (to be draining)" in capsys.readouterr().out
    assert logio(monkeypatch, "stop", "manual__1", "totals", "--drain") == 1
    assert "group 'totals' has no source: it ends by itself" in capsys.readouterr().err
    assert logio(monkeypatch, "stop", "manual__1", "ingest") == 0
    assert logio(monkeypatch, "stop", "manual__1", "--drain") == 1
    assert "`logio retry` it first" in capsys.readouterr().err
    store = open_store(sqlite_url)
    assert store.group(run.run_id, "ingest").desired is GroupState.HALTED
    for status in store.groups(run.run_id):
        if status.state is GroupState.NEW:
            finish(store, store.register(store.claim(run.run_id, status.group, expected=0, reason="t"), SOMEBODY))
    claim = store.claim(run.run_id, "ingest", expected=0, reason="t", by_user=True)
    finish(store, store.register(claim, SOMEBODY))
    store.dispose()
    assert logio(monkeypatch, "stop", "manual__1", "--drain") == 0
    assert "ingest: finished" in capsys.readouterr().out


def test_retry_refuses_a_group_that_needs_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "retry", "manual__1", "totals") == 1
    assert "run manual__1 of sales has nothing to retry: totals is new" in capsys.readouterr().err
    assert logio(monkeypatch, "retry", "manual__1", "nobody") == 1
    assert "no group 'nobody'" in capsys.readouterr().err


def test_db_makes_and_checks_tables_and_hides_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGIO_CONN_OTHER", f"sqlite:///{tmp_path / 'other.db'}")
    assert logio(monkeypatch, "db", "check", "--log", "other") == 1
    assert "logio db upgrade" in capsys.readouterr().err
    assert logio(monkeypatch, "db", "upgrade", "--log", "other") == 0
    assert logio(monkeypatch, "db", "check", "--log", "other") == 0
    monkeypatch.setenv("LOGIO_CONN_BAD", "postgresql://me:geheim@127.0.0.1:1/none")
    assert logio(monkeypatch, "db", "check", "--log", "bad") == 1
    printed = capsys.readouterr()
    assert "geheim" not in printed.out + printed.err
