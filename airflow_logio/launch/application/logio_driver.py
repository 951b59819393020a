"""The Spark application that spark-submit runs for a group; it lies alone in its folder, which becomes sys.path[0]."""

from __future__ import annotations

from airflow_logio.driver.process import main
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.driver_config import DriverConfig


def stand_by(config: DriverConfig, sessions: SparkSessions) -> DriverConfig | None:
    from airflow_logio.supervision import standby

    return standby.stand_by(config, sessions)


if __name__ == "__main__":
    main(stand_by)
