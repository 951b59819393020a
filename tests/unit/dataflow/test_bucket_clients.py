"""What each client is told of where a bucket is: the same store, by the URL or by the environment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_logio.dataflow.writers.bucket_clients import delta_rs_options, s3a_settings, s3fs_options

_ENVIRONMENT = {"AWS_ENDPOINT_URL": "http://minio:9000/"}


@pytest.mark.parametrize(
    ("query", "environment", "hadoop", "s3fs", "delta"),
    [
        ("", {}, {}, {"client_kwargs": {}}, {}),
        (
            "?region=eu-west-1",
            {},
            {"endpoint.region": "eu-west-1"},
            {"client_kwargs": {"region_name": "eu-west-1"}},
            {"aws_region": "eu-west-1"},
        ),
        (
            "?endpoint_override=minio:9000&scheme=http&consistent=yes",
            {},
            {
                "endpoint": "http://minio:9000",
                "endpoint.region": "us-east-1",
                "path.style.access": "true",
                "connection.ssl.enabled": "false",
            },
            {
                "client_kwargs": {},
                "endpoint_url": "http://minio:9000",
                "config_kwargs": {"s3": {"addressing_style": "path"}},
            },
            {"aws_endpoint_url": "http://minio:9000", "aws_allow_http": "true"},
        ),
        (
            "?endpoint_override=minio:9000&region=de",
            _ENVIRONMENT,
            {
                "endpoint": "https://minio:9000",
                "endpoint.region": "de",
                "path.style.access": "true",
                "connection.ssl.enabled": "true",
            },
            {
                "client_kwargs": {"region_name": "de"},
                "endpoint_url": "https://minio:9000",
                "config_kwargs": {"s3": {"addressing_style": "path"}},
            },
            {"aws_region": "de", "aws_endpoint_url": "https://minio:9000"},
        ),
        (  # of the environment, Hadoop knows nothing, and delta-rs not that it may go without TLS; botocore does
            "",
            _ENVIRONMENT,
            {
                "endpoint": "http://minio:9000",
                "endpoint.region": "us-east-1",
                "path.style.access": "true",
                "connection.ssl.enabled": "false",
            },
            {"client_kwargs": {}, "config_kwargs": {"s3": {"addressing_style": "path"}}},
            {"aws_endpoint_url": "http://minio:9000", "aws_allow_http": "true"},
        ),
        (  # Amazon's way in from a private network
            "?endpoint_override=vpce-1.s3.eu-west-1.vpce.amazonaws.com",
            {},
            {"endpoint": "https://vpce-1.s3.eu-west-1.vpce.amazonaws.com", "connection.ssl.enabled": "true"},
            {"client_kwargs": {}, "endpoint_url": "https://vpce-1.s3.eu-west-1.vpce.amazonaws.com"},
            {"aws_endpoint_url": "https://vpce-1.s3.eu-west-1.vpce.amazonaws.com"},
        ),
    ],
)
def test_all_clients_are_told_of_the_same_store(
    query: str,
    environment: Mapping[str, str],
    hadoop: Mapping[str, str],
    s3fs: Mapping[str, object],
    delta: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://lake/a/b{query}"
    assert s3a_settings(url) == {f"fs.s3a.bucket.lake.{name}": value for name, value in hadoop.items()}
    assert s3fs_options(url) == s3fs
    assert delta_rs_options(url) == delta
