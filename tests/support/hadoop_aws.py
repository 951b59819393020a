"""Hadoop's client of S3 for Spark: its jars, in PySpark's version of Hadoop, and its settings for a store of tests."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pyspark

from tests.support.maven import NotFetched, jars
from tests.support.object_store import ObjectStore

_SDK = {"3.4.1": "2.24.9", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""Hadoop → Amazon's SDK, as Hadoop's own POM has it; of 2.24.6, which 3.4.1 names, not all parts can be fetched."""
_PARTS = ("s3", "s3-transfer-manager", "sts", "url-connection-client", "apache-client", "netty-nio-client")
"""What Hadoop uses of the SDK, whose bundle of all services has hundreds of megabytes."""
_IN_SPARK = ("io.netty:*", "org.slf4j:*", "commons-logging:*", "commons-codec:*", "org.apache.httpcomponents:*")
"""Spark has them, in versions of its own."""


def hadoop_aws() -> Path:
    """The folder with the jars. Raises `NotFetched`."""
    [client] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = re.sub(r"hadoop-client-api-(.*)\.jar", r"\1", client.name)
    if version not in _SDK:
        raise NotFetched(f"PySpark {pyspark.__version__} has Hadoop {version}: say in {__name__} which SDK that has")
    sdk = (f"software.amazon.awssdk:{part}:{_SDK[version]}" for part in _PARTS)
    return jars(f"org.apache.hadoop:hadoop-aws:{version}", *sdk, without=("software.amazon.awssdk:bundle", *_IN_SPARK))


def why_no_hadoop_aws() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        hadoop_aws()
    except NotFetched as error:
        return str(error)
    return None


def s3a_classes(scratch: Path) -> dict[str, str]:
    """Settings of Spark with which drivers and executors of this machine know ``s3a://``, whose parts wait in the folder
    before they are put. Raises `NotFetched`."""
    classes = {f"spark.{who}.extraClassPath": f"{hadoop_aws()}/*" for who in ("driver", "executor")}
    return {**classes, "spark.hadoop.fs.s3a.buffer.dir": str(scratch)}


def s3a_settings(store: ObjectStore, bucket: str) -> dict[str, str]:
    """Settings of Hadoop with which ``s3a://bucket`` is in that store; credentials come from the environment."""
    scheme = urlsplit(store.endpoint).scheme
    return {
        f"fs.s3a.bucket.{bucket}.{name}": value
        for name, value in {
            "endpoint": store.endpoint,
            "endpoint.region": store.variables["AWS_DEFAULT_REGION"],
            "path.style.access": "true",
            "connection.ssl.enabled": str(scheme == "https").lower(),
        }.items()
    }
