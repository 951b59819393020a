"""What Airflow reads about this package: connection type with its form, operators, triggers, options.

Read by every Airflow process at its start, so it imports nothing.
"""

from __future__ import annotations

from typing import Any

NAME = "LOG.io"
SSL_MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


def get_provider_info() -> dict[str, Any]:
    """Entry point of group ``apache_airflow_provider``."""
    return {
        "package-name": "airflow-logio",
        "name": NAME,
        "description": "Exactly-once recovery, event lineage and scaling replicas for Spark pipelines run from Airflow.",
        "integrations": [
            {
                "integration-name": NAME,
                "external-doc-url": "https://arxiv.org/abs/2512.16038",
                "how-to-guide": ["/docs/reference.md"],
                "logo": "/docs/integration-logos/logio.svg",
                "tags": ["software"],
            }
        ],
        "connection-types": [_connection_type()],
        "hooks": [{"integration-name": NAME, "python-modules": ["airflow_logio.hooks.logio"]}],
        "operators": [
            {
                "integration-name": NAME,
                "python-modules": [
                    "airflow_logio.operators.assets",
                    "airflow_logio.operators.finish_run",
                    "airflow_logio.operators.fresh_run",
                    "airflow_logio.operators.lookback",
                    "airflow_logio.operators.pipeline_group",
                    "airflow_logio.operators.recover_group",
                    "airflow_logio.operators.scale",
                    "airflow_logio.operators.scaling_controller",
                    "airflow_logio.operators.spark",
                    "airflow_logio.operators.start_run",
                    "airflow_logio.operators.stop",
                    "airflow_logio.operators.supervise",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": NAME,
                "python-modules": ["airflow_logio.sensors.failed_group", "airflow_logio.sensors.recovered_group"],
            }
        ],
        "triggers": [
            {
                "integration-name": NAME,
                "python-modules": [
                    "airflow_logio.triggers.failed_groups",
                    "airflow_logio.triggers.group",
                    "airflow_logio.triggers.input_arrival",
                    "airflow_logio.triggers.recovered_group",
                    "airflow_logio.triggers.scale",
                    "airflow_logio.triggers.stop",
                ],
            }
        ],
        "extra-links": [
            "airflow_logio.operators.links.DriverLogLink",
            "airflow_logio.operators.links.ManagerLink",
            "airflow_logio.operators.links.SparkUiLink",
        ],
        "asset-uris": [
            {
                "schemes": ["logio"],
                "handler": "airflow_logio.asset_uris.sanitize_uri",
                "factory": "airflow_logio.asset_uris.create_asset",
            }
        ],
        "config": {"logio": {"description": "Options of the LOG.io provider.", "options": _options()}},
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "logio",
        "hook-name": NAME,
        "hook-class-name": "airflow_logio.hooks.logio.LogioHook",
        "ui-field-behaviour": {
            "hidden-fields": ["extra"],
            "relabeling": {"schema": "Database", "login": "User"},
            "placeholders": {
                "host": "host of the PostgreSQL server; empty for an SQLite file",
                "port": "5432",
                "schema": "logio",
            },
        },
        "conn-fields": {
            "path": {
                "label": "SQLite file",
                "description": "Absolute path of an SQLite file that holds the log, instead of a PostgreSQL server. "
                "All drivers must run on the machine that has it.",
                "schema": {"type": ["string", "null"]},
            },
            "payloads": {
                "label": "Payload store",
                "description": "Where large bodies and the effects of reads that cannot be replayed go: an absolute path of "
                "a folder that all drivers reach, or a URL that fsspec can open (s3://bucket/folder). By default beside an "
                "SQLite file; a PostgreSQL server has none.",
                "schema": {"type": ["string", "null"]},
            },
            "sslmode": {
                "label": "TLS mode",
                "description": "libpq's sslmode, for PostgreSQL.",
                "schema": {"type": ["string", "null"], "enum": [*SSL_MODES, None], "default": None},
            },
            "sslrootcert": {
                "label": "TLS root certificate",
                "description": "Path of the file that verify-ca and verify-full check the server's certificate against, "
                "on every machine that runs drivers.",
                "schema": {"type": ["string", "null"]},
            },
        },
    }


def _options() -> dict[str, Any]:
    return {
        "poll_interval": {
            "description": "Seconds between two checks of a group's state in the log by its watcher.",
            "version_added": "0.1.0",
            "type": "float",
            "example": "0.5",
            "default": "1.0",
        },
        "work_dir": {
            "description": "Folder for the files of Spark drivers (their logs, the code they are given), on each worker. "
            "Empty: the folder logio in AIRFLOW_HOME.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "/var/lib/airflow/logio",
            "default": "",
        },
        "recover_in_triggerer": {
            "description": "Which drivers that died the triggerer launches again by itself, without waiting for a worker. "
            "auto: those that ran beside it, on its machine and in its control group, as its user and in its environment. "
            "Those on nodes of a cluster it submits where it can. always: all whose tasks have no queue, pool or executor of "
            "their own; their drivers, with their memory, are on the machine of the triggerer from then on. never: workers "
            "launch all. Each triggerer obeys its own setting.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "never",
            "default": "auto",
        },
        "kubernetes_conn_id": {
            "description": "Connection of type kubernetes with which drivers are submitted to an API server of Kubernetes, "
            "looked at and ended (deploy mode cluster). Empty: the service account of the pod of a worker or triggerer, "
            "else its kubeconfig.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "kubernetes_default",
            "default": "",
        },
        "spark_history_url": {
            "description": "Address of the Spark history server that shows ended drivers. Empty: none, and the link to the "
            "Spark UI is there only while a driver lives.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "https://spark-history.example.com",
            "default": "",
        },
        "page_conn_id": {
            "description": "Connection of the log that the LOG.io page reads. It needs to read only: give it a database role "
            "that may do no more.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "logio_reader",
            "default": "logio_default",
        },
        "page_action_conn_id": {
            "description": "Connection of the log with which the LOG.io page stops, drains, scales and gives up runs. Empty: "
            "that of `page_conn_id`; if its role only reads, these actions are refused.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "logio_default",
            "default": "",
        },
    }
