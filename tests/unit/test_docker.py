"""The containers' files agree with each other: what one names, another one makes, mounts or copies."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shlex
import stat
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from airflow.secrets.local_filesystem import LocalFilesystemBackend
from typer.main import get_command

from airflow_logio.cli.app import commands
from airflow_logio.launch.spark_submit import INHERITED
from tests.support.postgres import PostgresServer
from tests.support.warehouse import rows_of

DOCKER = Path(__file__).parents[2] / "docker"
PASSWORD = 'p@ss/w:rd%20"\\ü'
AIRFLOW = Path("/opt/airflow")


@pytest.fixture(scope="module")
def standalone() -> ModuleType:
    spec = importlib.util.spec_from_file_location("standalone", DOCKER / "standalone.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def test_the_databases_are_found_whatever_the_password(standalone: ModuleType, tmp_path: Path) -> None:
    files: dict[Path, str] = standalone.files(PASSWORD, tmp_path / "airflow", tmp_path)
    for path, text in files.items():
        standalone.write(path, text)
        standalone.write(path, text)  # as after a restart
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    backend = LocalFilesystemBackend(connections_file_path=str(tmp_path / "airflow" / "connections.json"))
    names = {"logio_default": "logio", "warehouse_db": "warehouse"}
    for conn_id, database in names.items():
        connection = backend.get_connection(conn_id)
        assert connection is not None
        found = (connection.host, connection.port, connection.schema, connection.login, connection.password)
        assert found == ("postgres", 5432, database, "logio", PASSWORD)
    spark = backend.get_connection("spark_default")
    assert spark is not None and (spark.conn_type, spark.host) == ("spark", standalone.MASTER)
    urls = tomllib.loads((tmp_path / ".config" / "logio" / "connections.toml").read_text())["connections"]
    metadata = (tmp_path / "airflow" / "metadata_url").read_text()
    databases = {"logio_default": "logio", "warehouse": "warehouse", "": "airflow"}
    for name, url in {**urls, "": metadata}.items():
        parsed = sa.make_url(url)
        assert (parsed.host, parsed.database, parsed.password) == ("postgres", databases[name], PASSWORD)
    assert set(urls) == {"logio_default", "warehouse"}


def test_databases_that_are_missing_are_made(standalone: ModuleType, postgres_server: PostgresServer) -> None:
    made = [postgres_server.url(name) for name in standalone.OTHERS]
    try:
        for _ in range(2):
            standalone.make_databases(postgres_server.url("postgres"))
            assert [rows_of(url, "SELECT current_database()") for url in made] == [[(n,)] for n in standalone.OTHERS]
    finally:
        for url in made:
            postgres_server.drop_database(url)


def test_no_setting_of_a_container_is_a_secret(standalone: ModuleType, services: dict[str, Any]) -> None:
    settings = {name: str(value) for one in services.values() for name, value in one.get("environment", {}).items()}
    assert len(settings) > 5
    backend = json.loads(settings.pop("AIRFLOW__SECRETS__BACKEND_KWARGS"))
    assert set(backend) == {"connections_file_path"}
    secret = ("PASSWORD", "SECRET", "CONN", "KEY")
    for name, value in settings.items():
        named = any(word in name for word in secret) and not name.startswith("AIRFLOW__SECRETS__BACKEND")
        assert not named or name.endswith(("_FILE", "_CMD")), name
        assert not re.search(r"://[^/]*@", value), f"{name} has a URL with a user in it"
    for one in ("postgres", "airflow"):
        assert services[one]["secrets"] == [standalone.PASSWORD.name]
    assert settings["POSTGRES_PASSWORD_FILE"] == str(standalone.PASSWORD)


def test_airflow_reads_what_is_written(standalone: ModuleType, services: dict[str, Any]) -> None:
    written = set(standalone.files("x", AIRFLOW, Path("/home/logio")))
    settings = services["airflow"]["environment"]
    command = shlex.split(settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"])
    assert command[0] == "cat" and Path(command[1]) in written
    backend = json.loads(settings["AIRFLOW__SECRETS__BACKEND_KWARGS"])
    assert Path(backend["connections_file_path"]) in written
    assert services["postgres"]["environment"]["POSTGRES_USER"] == standalone.USER == standalone.LOG
    assert services["airflow"]["environment"]["AIRFLOW__CORE__DAGS_FOLDER"] in " ".join(services["airflow"]["volumes"])


def test_the_daemon_shares_what_airflow_has(standalone: ModuleType, services: dict[str, Any]) -> None:
    """Processes, host name and files: each can see and end the drivers that the other has launched."""
    tend, airflow = services["tend"], services["airflow"]
    assert tend["pid"] == tend["network_mode"] == "service:airflow"
    assert set(tend["volumes"]) <= set(airflow["volumes"])
    assert tend["command"][-1] == airflow["environment"]["AIRFLOW__LOGIO__WORK_DIR"]
    written = standalone.files(PASSWORD, AIRFLOW, Path("/home/logio"))
    known = tomllib.loads(written[Path(tend["environment"]["XDG_CONFIG_HOME"]) / "logio" / "connections.toml"])
    used = {"logio_default", "warehouse_db", "spark_default"}
    assert set(known["connections"]) == used
    assert known["connections"]["spark_default"] == standalone.MASTER
    assert used == set(json.loads(written[AIRFLOW / "connections.json"])), "by the ids that Airflow knows"


def test_the_unit_starts_the_daemon_and_ends_no_driver() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DOCKER / "logio-tend.service")
    program, command, *options = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("logio", "tend")
    logio: Any = get_command(commands())
    assert options[0] in {option for one in logio.commands["tend"].params for option in one.opts}
    assert unit["Service"]["KillMode"] == "process", "systemd would end the drivers with it"
    assert (unit["Service"]["Restart"], unit["Install"]["WantedBy"]) == ("always", "multi-user.target")


def test_whatever_is_mounted_or_copied_is_there(standalone: ModuleType, services: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists(), volume
    image = (DOCKER / "Dockerfile").read_text()
    copied = [word for line in image.splitlines() if line.startswith("COPY") for word in line.split()[1:-1]]
    assert copied
    ignored = (DOCKER.parent / ".dockerignore").read_text().split()
    for source in copied:
        assert (DOCKER.parent / source).exists(), source
        assert f"!{source.partition('/')[0]}" in ignored, f"{source} is not sent to Docker"
    program = Path(services["airflow"]["command"][1])
    assert f"docker/{program.name}" in copied and f"{program.parent}/" in image


def test_drivers_find_the_cluster(standalone: ModuleType, services: dict[str, Any]) -> None:
    """The driver's name and the limit of cores are settings of every driver: SPARK_CONF_DIR must reach them."""
    assert "SPARK_CONF_DIR" in INHERITED
    assert " SPARK_CONF_DIR=/opt/logio/docker " in (DOCKER / "Dockerfile").read_text()
    assert "spark.cores.max" in (DOCKER / "spark-defaults.conf").read_text()
    lines = [line.split(None, 1) for line in (DOCKER / "spark-defaults.conf").read_text().splitlines()]
    settings = {key: value.strip() for key, value in (line for line in lines if line) if not key.startswith("#")}
    assert settings["spark.driver.host"] == services["airflow"]["hostname"]
    assert services["spark-worker"]["command"][-1] == standalone.MASTER
    assert standalone.MASTER.startswith("spark://spark-master:") and "spark-master" in services
