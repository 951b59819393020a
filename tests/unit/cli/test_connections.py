"""Databases by connection id: the environment, then a file, then a default; never a command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_logio.cli import connection_file
from airflow_logio.cli.connection_file import ConnectionFile, ConnectionUrls, variable
from airflow_logio.errors import ConfigurationError
from tests.support.own_calls import as_seen


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(path: Path, content: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def known(environment: dict[str, str], urls: dict[str, str] | None = None) -> ConnectionUrls:
    return ConnectionUrls(environment, ConnectionFile(Path("logio.toml"), urls or {}))


def test_a_file_names_databases_by_connection_id(tmp_path: Path) -> None:
    path = written(tmp_path / "logio.toml", '[connections]\nwarehouse_db = "postgresql://u:p@host/sales"\n')
    warnings: list[str] = []
    assert ConnectionFile.read(path, warnings.append).urls == {"warehouse_db": "postgresql://u:p@host/sales"}
    assert warnings == []


def test_the_same_file_is_warned_of_once(tmp_path: Path) -> None:
    """Each command reads it; who has changed it, or its mode, hears of it again."""
    path = written(tmp_path / "logio.toml", '[connections]\nw = "sqlite:///w.db"\n', mode=0o644)
    environment = {"HOME": str(tmp_path / "home")}
    warnings: list[str] = []
    for _ in range(3):
        ConnectionFile.find(environment, warnings.append)
    assert len(warnings) == 1
    path.chmod(0o664)
    ConnectionFile.find(environment, warnings.append)
    assert len(warnings) == 2
    written(tmp_path / "file", "")
    ConnectionFile.find({"HOME": str(tmp_path / "file")}, warnings.append)
    assert len(warnings) == 3, "where that cannot be noted"


def test_a_file_that_others_may_read_is_warned_of_without_its_content(tmp_path: Path) -> None:
    path = written(tmp_path / "logio.toml", '[connections]\nw = "postgresql://u:geheim@host/sales"\n', mode=0o644)
    warnings: list[str] = []
    ConnectionFile.read(path, warnings.append)
    assert len(warnings) == 1 and "chmod 600" in warnings[0] and "geheim" not in warnings[0]


def test_the_folder_s_file_comes_before_the_user_s(tmp_path: Path) -> None:
    home = tmp_path / "home"
    written(home / ".config" / "logio" / "connections.toml", '[connections]\na = "sqlite:///user.db"\n')
    environment = {"HOME": str(home)}
    assert ConnectionFile.find(environment, lambda _: None).urls == {"a": "sqlite:///user.db"}
    written(tmp_path / "logio.toml", '[connections]\na = "sqlite:///folder.db"\n')
    assert ConnectionFile.find(environment, lambda _: None).urls == {"a": "sqlite:///folder.db"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[connections\n", "cannot be read"),
        ('connections = "x"\n', "must be a section"),
        ("[connections]\na = 5\n", "'a' must be a text"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ConnectionFile.read(written(tmp_path / "logio.toml", content), lambda _: None)


def test_the_environment_comes_before_the_file() -> None:
    urls = {"warehouse": "sqlite:////file.db"}
    assert known({}, urls).get("warehouse") == "sqlite:////file.db"
    assert known({"WAREHOUSE_URL": "sqlite:////short.db"}, urls).get("warehouse") == "sqlite:////short.db"
    both = {"WAREHOUSE_URL": "sqlite:////short.db", "LOGIO_CONN_WAREHOUSE": "sqlite:////long.db"}
    assert known(both, urls).get("warehouse") == "sqlite:////long.db"


def test_an_empty_variable_is_no_url() -> None:
    assert known({"WAREHOUSE_URL": ""}, {"warehouse": "sqlite:////file.db"}).get("warehouse") == "sqlite:////file.db"


def test_any_connection_id_has_a_variable() -> None:
    assert variable("my-db.eu") == "LOGIO_CONN_MY_DB_EU"
    assert known({"LOGIO_CONN_MY_DB_EU": "sqlite:////x.db"}).get("my-db.eu") == "sqlite:////x.db"


def test_an_unknown_connection_says_where_it_could_be_given() -> None:
    with pytest.raises(
        ConfigurationError, match=r"set LOGIO_CONN_LAKE to its URL .*, or add it to section .* of logio.toml"
    ):
        known({}).get("lake")


def test_the_log_defaults_to_a_file_in_the_folder(tmp_path: Path) -> None:
    assert known({}).log_url(None) == f"sqlite:///{tmp_path / '.logio' / 'logio.db'}"
    assert (tmp_path / ".logio").is_dir()


def test_logio_url_names_the_default_log_only() -> None:
    connections = known({"LOGIO_URL": "sqlite:////mine.db"}, {"production": "sqlite:////production.db"})
    assert connections.log_url(None) == "sqlite:////mine.db"
    assert connections.log_url("production") == "sqlite:////production.db"
    with pytest.raises(ConfigurationError, match="'other' is not known"):
        connections.log_url("other")


def test_the_payload_store_of_a_log(tmp_path: Path) -> None:
    path = written(tmp_path / "logio.toml", '[payloads]\nproduction = "s3://bucket/logio"\nlogio_default = "here"\n')
    file = ConnectionFile.read(path, lambda _: None)
    urls = {"production": "postgresql://u:p@host/log", "other": "postgresql://u:p@host/other"}
    connections = ConnectionUrls({}, ConnectionFile(path, urls, file.payloads))
    assert connections.payloads("production") == "s3://bucket/logio"
    assert connections.payloads("other") is None, "a server has no folder of its own"
    assert connections.payloads(None) == str(tmp_path / "here"), "drivers work in folders of their own"


def test_every_log_has_a_variable_for_its_payload_store() -> None:
    urls = {"production": "postgresql://u:p@host/log"}
    assert known({"LOGIO_PAYLOADS_PRODUCTION": "s3://bucket/p"}, urls).payloads("production") == "s3://bucket/p"
    default = {"LOGIO_URL": "postgresql://u:p@host/log", "LOGIO_PAYLOADS_LOGIO_DEFAULT": "s3://bucket/d"}
    assert known(default).payloads(None) == "s3://bucket/d"
    assert known(default | {"LOGIO_PAYLOADS": "s3://bucket/short"}).payloads(None) == "s3://bucket/d"


def warnings_of(content: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of the settings of a terminal, once per command."""
    written(Path("logio.toml"), content)
    monkeypatch.setattr(connection_file, "os", as_seen(os, environ={"HOME": "/nowhere"} | environment))
    warnings: list[str] = []
    ConnectionUrls.load(warnings.append)
    return warnings


def test_a_payload_store_under_an_id_that_nobody_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    content = (
        '[connections]\nproduction = "sqlite:////p.db"\n[payloads]\nproductoin = "s3://geheim"\nlogio = "s3://x"\n'
    )
    first, second = warnings_of(content, {}, monkeypatch)
    assert "payload store 'productoin'" in first and "logio_default, production" in first and "geheim" not in first
    assert "payload store 'logio'" in second
    content = '[payloads]\nproduction = "s3://a"\nlogio_default = "s3://b"\n'
    assert warnings_of(content, {"LOGIO_CONN_PRODUCTION": "sqlite:////p.db"}, monkeypatch) == []
    (said,) = warnings_of("", {"LOGIO_PAYLOADS_PRODUCTION": "s3://a", "LOGIO_PAYLOADS": "s3://b"}, monkeypatch)
    assert "LOGIO_PAYLOADS_PRODUCTION" in said and "logio_default" in said
    assert warnings_of("", {"LOGIO_PAYLOADS_MY_LOG": "s3://a", "LOGIO_CONN_MY_LOG": "x://y"}, monkeypatch) == []


def test_a_section_that_nobody_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = warnings_of('[connection]\nwarehouse = "sqlite:////geheim.db"\n', {}, monkeypatch)
    assert "'connection'" in said and "[connections], [payloads]" in said and "geheim" not in said


def test_without_a_setting_an_sqlite_log_has_its_payloads_beside_it(tmp_path: Path) -> None:
    assert known({}).payloads(None) == str(tmp_path / ".logio" / "logio.db.payloads")
    connections = known({"LOGIO_URL": "postgresql://u:p@host/log", "LOGIO_PAYLOADS": "s3://bucket/x"})
    assert connections.payloads(None) == "s3://bucket/x"
    assert known({"LOGIO_PAYLOADS": "s3://bucket/x"}, {"b": "sqlite:////b.db"}).payloads("b") == "/b.db.payloads"


def test_a_payload_store_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket/folder"):
        ConnectionFile.read(written(tmp_path / "logio.toml", "[payloads]\na = 5\n"), lambda _: None)


def test_a_file_with_a_payload_store_alone_is_warned_of_too(tmp_path: Path) -> None:
    path = written(tmp_path / "logio.toml", '[payloads]\na = "sftp://u:geheim@host/x"\n', mode=0o644)
    warnings: list[str] = []
    ConnectionFile.read(path, warnings.append)
    assert len(warnings) == 1 and "geheim" not in warnings[0]
