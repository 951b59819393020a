"""Replay operators on real driver processes, which die at commits one after the other, and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import writing
from tests.support.bundle.replayed import EVENTS_PER_SET, EVENTS_PER_TOTAL, RECORDS_PER_EVENT
from tests.support.logs import open_sql_store
from tests.support.running import PlainLauncher, Running, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "replayed.py"
ROWS, ITEMS = 1_200, 4
CHAIN = ("doubled", "items", "more")


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replayed") / "sales.parquet"
    rows = range(ROWS)
    pq.write_table(
        pa.table({"item": [row % ITEMS for row in rows], "amount": [row * row % 1013 for row in rows]}), path
    )
    return path


def expected() -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    sums: dict[tuple[int, int], int] = {}
    for row in range(ROWS):
        key = (row // (RECORDS_PER_EVENT * EVENTS_PER_SET) + 1, row % ITEMS)
        sums[key] = sums.get(key, 1) + 2 * (row * row % 1013)
    rows = [(batch, item, amount) for (batch, item), amount in sorted(sums.items())]
    groups = [rows[start : start + EVENTS_PER_TOTAL] for start in range(0, len(rows), EVENTS_PER_TOTAL)]
    return rows, [(number, sum(row[2] for row in group)) for number, group in enumerate(groups, start=1)]


def bodies(run: Running) -> dict[str, int]:
    """Operator → bytes of the bodies of its events that are in the log."""
    data = schema.event_data.c
    found: dict[str, int] = {}
    with run.store.engine.connect().execution_options(logio_writes=False) as connection:
        for operator, body, ref in connection.execute(sa.select(data.send_op, data.body, data.ref)):
            found[operator] = found.get(operator, 0) + len(body or b"") + len(ref or "")
    return found


def test_dying_at_commits_changes_nothing(log_url: str, warehouse_url: str, sales: Path, tmp_path: Path) -> None:
    """Inside of a commit on one database, behind it on the other."""
    point = CrashPoint.IN_LOG_TRANSACTION if log_url.startswith("sqlite") else CrashPoint.AFTER_COMMIT
    everybody = (*CHAIN, "ends", "late")
    armed = {(group, number): f"{point}:{number + 1}" for group in everybody for number in (1, 2)}
    ref = bundle.parse_ref(f"{MODULE}:pipeline")
    with running(log_url, warehouse_url, sales, PlainLauncher(tmp_path / "drivers", armed), ref=ref) as run:
        run.finish()
        assert all(run.status(group).incarnation >= 2 for group in everybody), f"{point} was not passed"
        logged = bodies(run)
    assert logged["source"] > 0 and not any(logged[name] for name in CHAIN)
    items, totals = expected()
    assert rows_of(warehouse_url, "SELECT batch, item, amount FROM replayed_items ORDER BY 1, 2") == items
    assert rows_of(warehouse_url, "SELECT number, amount FROM replayed_totals ORDER BY 1") == totals


def test_bodies_go_from_driver_to_driver(postgres_url: str, warehouse_url: str, sales: Path, tmp_path: Path) -> None:
    """All of them, though senders have finished long before."""
    ref = bundle.parse_ref(f"{MODULE}:pipeline")
    with running(postgres_url, warehouse_url, sales, PlainLauncher(tmp_path / "drivers"), ref=ref) as run:
        run.finish()
        sets = ROWS // RECORDS_PER_EVENT // EVENTS_PER_SET
        made = {"items": ROWS // RECORDS_PER_EVENT, "more": sets * ITEMS, "ends": sets * ITEMS, "late": sets * ITEMS}

        def came() -> dict[str, int]:
            said = {
                group: re.search(r"(\d+) events of replay operators came directly", run.log_of(group)) for group in made
            }
            return {group: int(found[1]) for group, found in said.items() if found}

        eventually(lambda: len(came()) == len(made), what="all have ended", timeout=60)
        assert came() == made
        tokens = {run.store.addresses.of_group(run.run.run_id, group).token for group in CHAIN}  # type: ignore[union-attr]
        assert len(tokens) == len(CHAIN), "each has its own"
        assert not any(token in run.log_of(group, 10_000) for token in tokens for group in (*CHAIN, *made))
        assert not any(bodies(run)[name] for name in CHAIN)
    items, totals = expected()
    assert rows_of(warehouse_url, "SELECT batch, item, amount FROM replayed_items ORDER BY 1, 2") == items
    assert rows_of(warehouse_url, "SELECT number, amount FROM replayed_totals ORDER BY 1") == totals


CLOSED = "grpc+tls://127.0.0.1:1"
"""Where no server listens: a firewall in between looks the same, and takes longer."""
TRIGGERS = {
    "postgresql": (
        f"CREATE FUNCTION elsewhere() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN NEW.location := '{CLOSED}'; RETURN NEW; END $$",
        "CREATE TRIGGER elsewhere BEFORE INSERT OR UPDATE ON logio_address FOR EACH ROW EXECUTE FUNCTION elsewhere()",
    ),
    "sqlite": (
        f"CREATE TRIGGER elsewhere AFTER INSERT ON logio_address BEGIN UPDATE logio_address SET location = '{CLOSED}'; END",
    ),
}


def test_drivers_that_do_not_reach_each_other_say_so_and_are_right(
    log_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    ref = bundle.parse_ref(f"{MODULE}:pipeline")
    log = open_sql_store(log_url)
    with writing(log.beats) as connection:
        for statement in TRIGGERS[log.engine.dialect.name]:
            connection.execute(sa.text(statement))
    with running(log_url, warehouse_url, sales, PlainLauncher(tmp_path / "drivers"), ref=ref) as run:
        run.finish()
        for group, sender in (("items", "doubled"), ("more", "items"), ("ends", "more"), ("late", "more")):
            said = f"records of group {sender} do not come directly at {CLOSED}: no one answers there"
            assert run.log_of(group, 10_000).count(said) == 1
            assert re.findall(r"(\d+) events of replay operators came", run.log_of(group, 10_000)) in (["0"], []), group
    items, totals = expected()
    assert rows_of(warehouse_url, "SELECT batch, item, amount FROM replayed_items ORDER BY 1, 2") == items
    assert rows_of(warehouse_url, "SELECT number, amount FROM replayed_totals ORDER BY 1") == totals
    log.dispose()
