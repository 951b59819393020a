"""Start program of the container `airflow`: creates missing databases, writes connection files, then becomes
`airflow standalone`.

The password of PostgreSQL comes from a file and goes into files that only this container's user can read. So `airflow` and
`logio` find the databases in a shell of the container, too, and the environment does not show the password.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from airflow_logio.errors import ConfigurationError
from demo.data import load_products, warehouse_engine
from demo.standalone import log_connection, spark_connection, warehouse_connection

PASSWORD = Path("/run/secrets/postgres_password")
MASTER = "spark://spark-master:7077"
USER, LOG = "logio", "logio"
"""The user and the database that the server creates by itself."""
OTHERS = ("airflow", "warehouse")


def database(name: str, password: str) -> str:
    """URL of a database of the container `postgres`."""
    url = URL.create("postgresql+psycopg2", USER, password, "postgres", 5432, name)
    return url.render_as_string(hide_password=False)


def make_databases(url: str) -> None:
    """Create the missing databases of OTHERS on the server of `url`. Raises `sqlalchemy.exc.DBAPIError`."""
    engine = warehouse_engine(url)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            there = set(connection.execute(sa.text("SELECT datname FROM pg_database")).scalars())
            for name in OTHERS:
                if name not in there:
                    connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    finally:
        engine.dispose()


def files(password: str, airflow: Path, home: Path) -> dict[Path, str]:
    """Path → text of the files: URL of Airflow's metadata, Airflow's connections, and those of the command line and of
    `logio tend`, which knows them by Airflow's ids."""
    log, warehouse = database(LOG, password), database("warehouse", password)
    connections = {
        "logio_default": log_connection(log),
        "warehouse_db": warehouse_connection(warehouse),
        "spark_default": spark_connection(MASTER),
    }
    urls = {"logio_default": log, "warehouse": warehouse}
    supervised = {"logio_default": log, "warehouse_db": warehouse, "spark_default": MASTER}
    return {
        airflow / "config" / "logio" / "connections.toml": _connection_file(supervised),
        airflow / "metadata_url": database("airflow", password),
        airflow / "connections.json": json.dumps({name: json.loads(text) for name, text in connections.items()}),
        home / ".config" / "logio" / "connections.toml": _connection_file(urls),
    }


def _connection_file(urls: Mapping[str, str]) -> str:
    return "\n".join(["[connections]", *(f"{name} = {json.dumps(url)}" for name, url in urls.items()), ""])


def write(path: Path, text: str) -> None:
    """Write a file that only this user can read, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def main() -> None:
    try:
        password = PASSWORD.read_text().strip()
        make_databases(database(LOG, password))
    except OSError as error:
        sys.exit(f"airflow: the password of PostgreSQL cannot be read, see docker/README.md: {error}")
    except sa.exc.DBAPIError as error:
        sys.exit(f"airflow: the databases cannot be created: {str(error.orig).strip()}")
    for path, text in files(password, Path(os.environ["AIRFLOW_HOME"]), Path.home()).items():
        write(path, text)
    try:
        load_products(database("warehouse", password))
    except ConfigurationError as error:  # the user has another table of that name: only the examples miss theirs
        print(f"airflow: the examples cannot run: {error}", file=sys.stderr)  # noqa: T201 - before there is a logger
    os.execvp("airflow", ["airflow", "standalone"])


if __name__ == "__main__":
    main()
