"""What a request of the page costs inside Airflow: its application, its auth manager and its users, without a network.

Airflow takes its home and its database from the environment when it is imported, so this is measured in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import make_url

from airflow_logio.store import open_store
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.support.large_runs import large_run

LOOKS = 15
REQUESTS = "fresh", "shared"


def measure(databases: Databases) -> Iterator[Figure]:
    """CPU time of the server's process, and time, of ``GET api/runs/UID`` at 600 groups: medians of so many."""
    with tempfile.TemporaryDirectory() as folder:
        log_url, _ = databases.fresh(Path(folder))
        store = open_store(log_url)
        try:
            run = large_run(store)
        finally:
            store.dispose()
        costs = _asked(log_url, run.uid, run.spec.key.dag_id, folder)
    for kind, wanted, details in (
        ("a look that asks the log", "50", f"{len(run.spec.groups)} groups of the log, {costs['size'] / 1000:.0f} kB"),
        ("a look that another has just taken", "", "user, rights, and the bytes that are there"),
    ):
        cpu, wall = costs[REQUESTS[0] if wanted else REQUESTS[1]]
        yield Figure(databases.name, f"page in Airflow, a request for {kind}", cpu, "ms CPU", wanted, details)
        yield Figure(databases.name, f"page in Airflow, a request for {kind}, in all", wall, "ms", wanted, details)


def _asked(log_url: str, uid: str, dag_id: str, folder: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": folder,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret that is long enough for any algorithm" * 2,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "viewer:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": f"{folder}/passwords.json",
        "AIRFLOW_CONN_LOGIO_DEFAULT": _connection(log_url),
    }
    command = [sys.executable, "-m", "tests.bench.page_requests", uid, dag_id]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the page in Airflow was not measured: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _connection(log_url: str) -> str:
    """As Airflow reads it from its environment."""
    url = make_url(log_url)
    if url.drivername.startswith("sqlite"):
        return json.dumps({"conn_type": "logio", "extra": {"path": url.database}})
    where = {
        "host": url.host,
        "port": url.port,
        "schema": url.database,
        "login": url.username,
        "password": url.password,
    }
    return json.dumps({"conn_type": "logio", **where})


# --- in the process of its own --------------------------------------------------------------------------------------------


def _served(dag_id: str) -> Any:
    """Airflow's application as far as plugins and users go, over an own database with the DAG of the run."""
    from airflow import settings
    from airflow.api_fastapi import app as airflow_app
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from fastapi import FastAPI

    import_all_models()
    Base.metadata.create_all(settings.engine)
    with settings.Session() as session:
        session.add(DagBundleModel(name="dags"))
        session.flush()
        session.add(DagModel(dag_id=dag_id, bundle_name="dags", fileloc="x"))
        session.commit()
    main = FastAPI()
    airflow_app.init_plugins(main)
    main.state.auth_manager = airflow_app.create_auth_manager()
    return main


async def _costs(main: Any, uid: str) -> dict[str, Any]:
    import httpx
    from airflow.api_fastapi import app as airflow_app
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    from airflow_logio.ui.page_places import PREFIX

    token = airflow_app.get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="viewer", role="viewer"))
    took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in REQUESTS}
    size = 0
    transport = httpx.ASGITransport(app=main)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://page", headers=headers) as client:
        for _ in range(LOOKS + 1):
            await asyncio.sleep(1.5)  # until a look that costs more than a tenth of it does not hold any more
            for kind in REQUESTS:
                cpu, wall = time.process_time(), time.perf_counter()
                answer = await client.get(f"{PREFIX}/api/runs/{uid}")
                took[kind].append(((time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000))
                if answer.status_code != 200:
                    raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
                size = len(answer.content)
    medians = {kind: [median(one[part] for one in some[1:]) for part in (0, 1)] for kind, some in took.items()}
    return {**medians, "size": size}


def _main() -> None:
    _, uid, dag_id = sys.argv
    print(json.dumps(asyncio.run(_costs(_served(dag_id), uid))))


if __name__ == "__main__":
    _main()
