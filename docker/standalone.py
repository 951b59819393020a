"""What the container `airflow` runs: writes down where the databases are, then becomes `airflow standalone`.

The password of PostgreSQL comes from a file and goes into files that only this container's user reads: so that `airflow` and
`logio` find the databases in a shell of the container, too, and no environment shows it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sqlalchemy.engine import URL

from airflow_logio.demo.connections import log_connection, spark_connection, warehouse_connection
from airflow_logio.demo.data import load_products
from airflow_logio.errors import LogioError

PASSWORD = Path("/run/secrets/postgres_password")
MASTER = "spark://spark-master:7077"


def database(name: str, password: str) -> str:
    """URL of a database of the container `postgres`."""
    url = URL.create("postgresql+psycopg2", "logio", password, "postgres", 5432, name)
    return url.render_as_string(hide_password=False)


def files(password: str, airflow: Path, home: Path) -> dict[Path, str]:
    """Path → text: Airflow's metadata and connections, and those of the command line."""
    log, warehouse = database("logio", password), database("warehouse", password)
    connections = {
        "logio_default": log_connection(log),
        "warehouse_db": warehouse_connection(warehouse),
        "spark_default": spark_connection(MASTER),
    }
    urls = {"logio_default": log, "warehouse": warehouse}
    return {
        airflow / "metadata_url": database("airflow", password),
        airflow / "connections.json": json.dumps({name: json.loads(text) for name, text in connections.items()}),
        home / ".config" / "logio" / "connections.toml": "\n".join(
            ["[connections]", *(f"{name} = {json.dumps(url)}" for name, url in urls.items()), ""]
        ),
    }


def write(path: Path, text: str) -> None:
    """For this user alone, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def main() -> None:
    try:
        password = PASSWORD.read_text().strip()
        load_products(database("warehouse", password))
        for path, text in files(password, Path(os.environ["AIRFLOW_HOME"]), Path.home()).items():
            write(path, text)
    except (OSError, LogioError) as error:
        sys.exit(f"airflow: {error}")
    os.execvp("airflow", ["airflow", "standalone"])


if __name__ == "__main__":
    main()
