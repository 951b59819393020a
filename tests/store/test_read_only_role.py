"""A person whose database role may only read looks at a run, and can change nothing (docs/how-to/operate.md)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_logio.databases import parse_url
from airflow_logio.errors import NotPermitted
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from tests.conftest import QUICK
from tests.support.logs import fetched, open_sql_store, sent, start_driver

ROLE = "logio_reader"


@pytest.fixture
def reader_url(postgres_url: str) -> str:
    engine = sa.create_engine(parse_url(postgres_url))
    with engine.begin() as connection:
        there = sa.text("SELECT 1 FROM pg_roles WHERE rolname = :name")
        if connection.execute(there, {"name": ROLE}).one_or_none() is None:
            connection.execute(sa.text(f"CREATE ROLE {ROLE} LOGIN"))
        connection.execute(sa.text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}"))
    engine.dispose()
    return sa.make_url(postgres_url).set(username=ROLE).render_as_string(hide_password=False)


@pytest.mark.postgres
def test_who_may_only_read_sees_a_run_and_changes_nothing(postgres_url: str, reader_url: str) -> None:
    owner = open_sql_store(postgres_url)
    driver = start_driver(owner)
    driver.session.commit([sent(1)])
    reader = open_store(reader_url, application="logio test", patience=QUICK)
    (run,) = reader.list_runs()
    assert [status.group for status in reader.groups(run.run_id)] == ["g"]
    assert reader.code(run.run_id, 0).archive is None
    with pytest.raises(NotPermitted, match="permission denied"):
        reader.declare_dead(GroupRef(run.run_id, "g", 1), "by somebody who may not")
    driver.session.commit([sent(2)])
    assert fetched(driver.session) == [1, 2]
    reader.dispose()
    owner.dispose()
