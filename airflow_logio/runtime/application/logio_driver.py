"""The Spark application that spark-submit runs for a group; it lies alone in its folder, which becomes sys.path[0]."""

from __future__ import annotations

from airflow_logio.runtime.driver.process import main
from airflow_logio.runtime.driver.spark_session import SparkSessions
from airflow_logio.runtime.launch.driver_config import DriverConfig


def stand_by(config: DriverConfig, sessions: SparkSessions) -> DriverConfig | None:
    from airflow_logio.runtime.standby import taking_over  # a driver knows nothing of who looks after it

    return taking_over.stand_by(config, sessions)


if __name__ == "__main__":
    main(stand_by)
