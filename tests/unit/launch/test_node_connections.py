"""What a node says to its drivers: where the log is, and what is secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_arguments import CONNECTIONS_VARIABLE
from airflow_logio.launch.nodes.node_connections import CONTENT_VARIABLE, NodeConnections, of_this_node

LOG = "postgresql://logio:hunter22@db/logio"
ALL = {
    "log": LOG,
    "payloads": "s3://key:hunter22@bucket/payloads",
    "connections": {"warehouse_db": "postgresql://w:hunter22@db/w", "shop": "https://shop/?token=hunter22"},
    "environment": {"SHOP_TOKEN": "hunter22", "EMPTY": ""},
}
SECRET = "hunter22"


def file_of(folder: Path, content: object, mode: int = 0o600) -> str:
    file = folder / "connections.json"
    text = content if isinstance(content, str) else json.dumps(content)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    file.chmod(mode)
    return str(file)


def test_all_that_a_node_can_say(tmp_path: Path) -> None:
    file = file_of(tmp_path, ALL)
    for named, environment in ((file, {}), (None, {CONNECTIONS_VARIABLE: str(file)})):
        found = of_this_node(named, environment)
        assert (found.log_url, found.payloads) == (ALL["log"], ALL["payloads"])
        assert (found.connections, found.environment) == (ALL["connections"], ALL["environment"])
        assert SECRET not in repr(found) and str(file) in repr(found)


def test_the_log_alone_is_enough(tmp_path: Path) -> None:
    found = of_this_node(file_of(tmp_path, {"log": LOG}), {})
    assert found == NodeConnections(found.place, LOG, None, {}, {})


def test_a_secret_in_the_environment_is_taken_out_of_it(tmp_path: Path) -> None:
    environment = {CONTENT_VARIABLE: json.dumps(ALL), "PATH": "/bin"}
    assert of_this_node(None, environment).environment == ALL["environment"]
    assert environment == {"PATH": "/bin"}
    environment = {CONTENT_VARIABLE: "{", CONNECTIONS_VARIABLE: "/none"}
    assert of_this_node(file_of(tmp_path, {"log": LOG}), environment).log_url == LOG, "an argument decides"
    assert CONTENT_VARIABLE not in environment


def test_a_mounted_secret_has_the_modes_of_its_volume(tmp_path: Path) -> None:
    """Kubernetes makes the files of a volume links to those of its newest content."""
    newest = tmp_path / "..2026_11_30"
    newest.mkdir()
    file_of(newest, {"log": LOG}, 0o444)
    (tmp_path / "..data").symlink_to(newest.name)
    link = tmp_path / "connections.json"
    link.symlink_to("..data/connections.json")
    assert of_this_node(str(link), {}).log_url == LOG


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_reach_is_refused(tmp_path: Path, mode: int) -> None:
    file = file_of(tmp_path, ALL, mode)
    with pytest.raises(ConfigurationError, match=f"others may read or change it .mode {mode:04o}.: chmod 600 {file}"):
        of_this_node(file, {})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "truncated"),
        (f'{{"log": "{LOG}"', "truncated"),
        (f'{{"log": "{LOG}" "payloads": null}}', "malformed"),
        ("[]", "Expected `object`"),
        ({"payloads": None}, "missing required field `log`"),
        ({"log": LOG, "conections": {}}, "unknown field `conections`"),
        ({"log": LOG, "connections": {"w": {"url": SECRET}}}, "Expected `str`"),
        ({"log": LOG, "environment": {"N": 1}}, "Expected `str`"),
        ({"log": LOG, "environment": None}, "Expected `object`"),
        ('{"log": "\udcff"}', "UTF-8"),
        ("[" * 100_000, "Expected `object`"),
        ({"log": "sqlite:////var/logio.db"}, "need a log on PostgreSQL"),
        ({"log": "mysql://logio:hunter22@db/logio"}, "not supported"),
        ({"log": "db/hunter22"}, "cannot be parsed"),
        ({"log": LOG, "payloads": "payloads"}, "absolute path"),
        ({"log": LOG, "connections": {"w": ""}}, "connections has 'w' without a value"),
        ({"log": LOG, "connections": {"": SECRET}}, "without a name"),
        ({"log": LOG, "environment": {"A=B": SECRET}}, "'A=B', which cannot be a name"),
        ({"log": LOG, "environment": {"A": SECRET + "\0"}}, "'A', which cannot be a name"),
    ],
)
def test_what_drivers_cannot_use_is_refused_without_its_secrets(tmp_path: Path, content: object, said: str) -> None:
    file = file_of(tmp_path, content)
    with pytest.raises(ConfigurationError) as refused:
        of_this_node(file, {})
    assert said in str(refused.value) and str(file) in str(refused.value)
    assert SECRET not in str(refused.value) and refused.value.__cause__ is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for named, said in (
        (str(tmp_path / "none.json"), "does not exist on this node: every node"),
        ("relative.json", "no absolute path"),
        (str(tmp_path), "cannot be read: Is a directory"),
        (f"s3a://key:{SECRET}@bucket/c.json", "names an address s3a://..., where drivers do not look"),
        (f"hdfs://anna:{SECRET}@nn:8020/c.json", "the file of connections hdfs://... names no NameNode, or a user"),
        ("hdfs://nn:8020/", "which is no file"),
    ):
        for given, environment in ((named, {}), (None, {CONNECTIONS_VARIABLE: named})):
            with pytest.raises(ConfigurationError, match=said) as refused:
                of_this_node(given, environment)
            assert SECRET not in str(refused.value)


def test_a_local_file_loads_no_client_of_hdfs(tmp_path: Path) -> None:
    """Nor what reads files elsewhere: a driver starts with it."""
    file = file_of(tmp_path, {"log": LOG})
    script = (
        "import sys; from airflow_logio.launch.nodes.node_connections import of_this_node; "
        f"of_this_node({file!r}, {{}}); print({{'hdfs_native', 'pyarrow', 'fsspec'}} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_node_that_says_nothing_or_two_things_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"does not say where the log is: name a file .* spark.logio.connections"
    ):
        of_this_node(None, {})
    both = {CONTENT_VARIABLE: json.dumps(ALL), CONNECTIONS_VARIABLE: str(file_of(tmp_path, ALL))}
    with pytest.raises(ConfigurationError, match="both LOGIO_CONNECTIONS and LOGIO_CONNECTIONS_JSON are set"):
        of_this_node(None, both)
    assert CONTENT_VARIABLE not in both


def test_the_process_environment_is_changed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTENT_VARIABLE, json.dumps({"log": LOG}))
    monkeypatch.delenv(CONNECTIONS_VARIABLE, raising=False)
    assert of_this_node(None, os.environ).log_url == LOG
    assert CONTENT_VARIABLE not in os.environ
