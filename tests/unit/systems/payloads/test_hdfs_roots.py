"""Roots of payload stores on HDFS, and what its client's errors mean: no daemons."""

from __future__ import annotations

import re

import pytest

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.systems.hdfs_roots import parsed
from airflow_logio.systems.payload_roots import check_shared
from airflow_logio.systems.payloads.file_roots import data_files, located
from airflow_logio.systems.payloads.hdfs_client import Hdfs


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("hdfs:///path", "names no NameNode"),
        ("hdfs://anna:geheim@host:8020/path", "names no NameNode, or a user"),
        ("hdfs://host:port/path", "no valid address"),
        ("hdfs://host:8020/path?user=geheim", "parameters"),
        ("hdfs://host:8020/pa*th", "one of *?"),
        ("hdfs://host:8020/a:b", "one of *?"),
        ("hdfs://host:8020/a//b", "an empty name"),
        ("hdfs://host:8020/a/../b", "an empty name"),
    ],
)
def test_a_root_that_not_all_clients_understand_is_refused_without_its_secret(root: str, says: str) -> None:
    for ask in (parsed, check_shared, data_files):
        with pytest.raises(ConfigurationError, match=re.escape(says)) as refused:
            ask(root)
        assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("root", ["hdfs://host:8020/a/b/", "hdfs://names/a/b", "hdfs://host:8020"])
def test_each_client_is_told_of_the_same_file(root: str) -> None:
    check_shared(root)
    files = data_files(root)
    plain = root.rstrip("/")
    assert files.root == plain
    assert files.location("run/f.parquet") == files.spark_path("run/f.parquet") == f"{plain}/run/f.parquet"
    again, path = located(files.location("run/f.parquet"))
    assert again.location(path) == f"{plain}/run/f.parquet"
    assert not files.keeps_secrets and files.by_spark


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            RuntimeError('RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "x")'),
            LogUnavailable,
            "Safe",
        ),
        (RuntimeError('RPCError("org.apache.hadoop.ipc.StandbyException", "x")'), LogUnavailable, "Standby"),
        (
            RuntimeError('RPCError("org.apache.hadoop.ipc.RetriableException", "x\\n\\tat org.a.b")'),
            LogUnavailable,
            "Retr",
        ),
        (RuntimeError("BlocksNotFound"), LogUnavailable, "BlocksNotFound"),
        (OSError("Connection refused (os error 111)"), LogUnavailable, "Connection refused"),
        (
            RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "x")'),
            ConfigurationError,
            "-chown",
        ),
        (RuntimeError('SASLError("No valid mechanism")'), ConfigurationError, "HADOOP_USER_NAME"),
        (RuntimeError('InvalidArgument("No NameNode hosts found")'), ConfigurationError, "HADOOP_CONF_DIR"),
        (RuntimeError('UnsupportedFeature("hsync")'), ConfigurationError, "hsync"),
        (
            RuntimeError('DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: 7 }]")'),
            LogUnavailable,
            "hdfs fsck",
        ),
        (
            RuntimeError('RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "/SASL/a")'),
            LogUnavailable,
            "Safe",
        ),
        (
            RuntimeError('RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "/a (is not a directory)")'),
            ConfigurationError,
            "A file has a name",
        ),
        (
            RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "/a (is not a directory)")'),
            ConfigurationError,
            "A file has a name",
        ),
        (
            RuntimeError(
                'RPCError("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException", "n")'
            ),
            ConfigurationError,
            "TooLong",
        ),
    ],
)
def test_what_waiting_mends_and_what_only_a_person_does(error: Exception, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as told, Hdfs("hdfs://host:8020/a").translated():
        raise error
    assert "\\n\\tat" not in str(told.value) and "DatanodeInfoProto" not in str(told.value)
