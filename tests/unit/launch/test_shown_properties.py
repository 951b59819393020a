"""No secret is among what a cluster manager shows."""

from __future__ import annotations

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.redaction import check_no_secrets, known_secrets

SECRETS = known_secrets(
    ["postgresql://logio:s3cr%21t-of-log@db/logio", "postgresql://w@db/w?password=of-w4rehouse", "sqlite:////a/b.db"],
    "s3://AKIA123456@bucket/payloads?token=p4yload-token",
    {"SHOP_TOKEN": "sh0p-token", "SHOP_TOKEN_FILE": "/run/token", "RETRIES_OF_TOKEN": "17", "HOME": "/home/logio"},
)
OF_NODES = ("spark.yarn.appMasterEnv.X", "spark.kubernetes.driverEnv.X", "spark.executorEnv.X", "LOGIO_X")
"""The last is a variable that a standalone master's REST is sent."""


@pytest.mark.parametrize("name", [*OF_NODES, "spark.driver.extraJavaOptions", "spark.app.name", "spark.logio.x"])
@pytest.mark.parametrize(
    "secret",
    [
        "s3cr!t-of-log",
        "s3cr%21t-of-log",
        "of-w4rehouse",
        "AKIA123456",
        "p4yload-token",
        "sh0p-token",
        "http://someone:else@proxy:8080",
        "jdbc:postgresql://u:pw@host/db",
    ],
)
def test_a_secret_is_refused_wherever_it_stands(name: str, secret: str) -> None:
    for value in (secret, f"-Dx={secret} -Dy=1"):
        with pytest.raises(ConfigurationError) as refused:
            check_no_secrets({"spark.a": "1", name: value}, SECRETS)
        assert name in str(refused.value)
        assert "LOGIO_CONNECTIONS" not in str(refused.value) and "`environment`" in str(refused.value)
        assert secret not in str(refused.value), "no message repeats a value"
        kind = "the variable" if name in OF_NODES else "the property"
        assert str(refused.value).startswith(f"{kind} {name} ")


def test_what_is_no_secret_passes() -> None:
    conf = {
        "spark.hadoop.fs.defaultFS": "hdfs://name@node:9000/user",
        "spark.jars": "hdfs://host:9000/a@b.jar,local:///opt/a.jar",
        "spark.executorEnv.HOME": "/home/logio",
        "spark.kubernetes.driverEnv.LOGIO_CONNECTIONS": "/etc/logio/connections.json",
        "spark.x": "17",
        "spark.logio.connections": "/run/token",
        "spark.master": "spark://one:7077,two:7077",
    }
    check_no_secrets(conf, SECRETS)
    check_no_secrets({"spark.x": "s3cr!t-of-log"}, ())
