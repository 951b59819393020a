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
NAMES = [
    "spark.yarn.appMasterEnv.X",
    "spark.kubernetes.driverEnv.X",
    "spark.executorEnv.X",
    "spark.driver.extraJavaOptions",
    "spark.logio.x",
]


@pytest.mark.parametrize("kind", ["property", "variable", "setting"])
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
def test_a_secret_is_refused_wherever_it_stands(kind: str, secret: str) -> None:
    for name in NAMES if kind == "property" else ["jars"]:
        for value in (secret, f"-Dx={secret} -Dy=1"):
            with pytest.raises(ConfigurationError) as refused:
                check({name: value}, kind, SECRETS)
            assert str(refused.value).startswith(f"{kind} {name} of a driver on a cluster holds ")
            assert "`environment`" in str(refused.value)
            assert secret not in str(refused.value), "no message repeats a value"


def check(values: dict[str, str], kind: str, secrets: frozenset[str]) -> None:
    given = {"property": {"spark.a": "1"}, "variable": {}, "setting": {}, kind: values}
    check_no_secrets(given["property"], secrets, variables=given["variable"], settings=given["setting"])


def test_a_variable_of_a_driver_that_is_called_like_a_secret_is_refused() -> None:
    for name in ("spark.yarn.appMasterEnv.SHOP_TOKEN", "spark.kubernetes.driverEnv.DB_PASSWORD"):
        with pytest.raises(ConfigurationError, match=rf"property {name} .* holds what is called like a secret"):
            check_no_secrets({name: "0123"[::-1] + "abcd"}, ())
    with pytest.raises(ConfigurationError, match=r"variable API_KEY .* holds what is called like a secret"):
        check_no_secrets({}, (), variables={"API_KEY": "abcdef"})
    check_no_secrets({"spark.executorEnv.AWS_SECRET_ACCESS_KEY": "abcdef"}, ())
    check_no_secrets({"spark.kubernetes.driver.secretKeyRef.SHOP_TOKEN": "shop:token"}, ())
    check_no_secrets({"spark.kubernetes.driverEnv.TOKEN_FILE": "/run/token"}, (), variables={"TOKENS": "17"})
    check_no_secrets({"spark.hadoop.fs.s3a.secret.key": "abcdef"}, ())


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
