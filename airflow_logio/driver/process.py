"""The entry point of a driver: its configuration, its Spark session, then everything else.

The JVM needs seconds for a Spark session and the rest of a driver's start needs Python, so the session is begun before
the other modules are imported: on two cores they proceed side by side.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from airflow_logio.driver.last_steps import before_exit, exit_process
from airflow_logio.driver.spark_session import IDLE_SECONDS, SparkSessions, begin_idle_application
from airflow_logio.errors import LogioError
from airflow_logio.launch import driver_config
from airflow_logio.launch.driver_arguments import DriverArguments
from airflow_logio.launch.driver_config import FAILED, FINISHED, DriverConfig
from airflow_logio.launch.driver_folders import discard_keytab
from airflow_logio.launch.shared_server import ServerClient, ServerRecipe
from airflow_logio.spark.connect_engine import Address, ConnectEngine, ConnectTarget, ServerAddress, SessionName
from airflow_logio.spark.engine import ClassicEngine, SparkEngine

log = logging.getLogger(__name__)


StandBy = Callable[[DriverConfig, SparkSessions], DriverConfig | None]
"""Waits until there is a driver's place to take, and says which; None if there will be none."""


def main(stand_by: StandBy) -> NoReturn:
    """Entry point: ``logio_driver.py --config FILE [--standby]``, or the words of `DriverArguments` on a cluster."""
    arguments = _arguments(sys.argv[1:])
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    code = FAILED
    try:
        if arguments.config is None:
            from airflow_logio.driver.on_node import node_driver

            code = node_driver.drive(DriverArguments.parsed(arguments), lambda config: _drive(config, None))
        else:
            before_exit(partial(discard_keytab, arguments.config.parent.absolute()))
            code = _drive(driver_config.take(arguments.config), stand_by if arguments.standby else None)
    except LogioError as error:
        log.error("%s: %s", type(error).__name__, error)
    except BaseException:
        log.exception("the driver failed")
    exit_process(code)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Driver of one LOG.io operator group; started by a launcher.")
    parser.add_argument("--config", type=Path, help="file of mode 0600 that the launcher wrote")
    parser.add_argument("--standby", action="store_true", help="wait for the death of the driver whose claim this is")
    DriverArguments.add_to(parser)
    found = parser.parse_args(words)
    if found.config is None and (missing := DriverArguments.missing(found)):
        parser.error(f"without --config, a driver needs {', '.join(missing)}")
    return found


def _drive(config: DriverConfig, stand_by: StandBy | None) -> int:
    os.environ.update(config.environment)  # before the author's module is imported, which may read them
    sessions = SparkSessions(_engine(config, is_standby=stand_by is not None), has_frames=config.has_frames)
    idle: threading.Thread | None = None
    if config.needs_spark:
        sessions.begin()
    elif config.submission is not None and config.submission.manager == "yarn":
        idle = begin_idle_application()
    taken = config if stand_by is None else stand_by(config, sessions)
    if taken is None:
        sessions.stop()
        return FINISHED
    from airflow_logio.driver.incarnation import Driver  # not before the session is on its way

    code = Driver(taken, sessions).run()
    if idle is not None:  # of a driver that ends before it, YARN says that it has failed
        idle.join(IDLE_SECONDS)
    return code


def _engine(config: DriverConfig, *, is_standby: bool) -> SparkEngine:
    if config.connect is None:
        return ClassicEngine([config.executor_code] if config.executor_code else [])
    claim = config.claim
    incarnation = claim.incarnation + (1 if is_standby else 0)
    name = SessionName(claim.run_uid, claim.group, incarnation, is_standby)
    return ConnectEngine(config.connect, name, _address(config.connect, config.server))


def _address(target: ConnectTarget, recipe: ServerRecipe | None) -> Address:
    if recipe is not None:
        return ServerClient(recipe).connected
    url = target.url
    assert url is not None
    address = ServerAddress(url, target.token)
    return lambda _: address


def use_once() -> None:
    """Use what libraries put off until it is used for the first time: half a second, and more on a busy machine.

    A process that has time does it before it is needed. Arrow's first aggregation imports its engine, and that imports
    pandas, where it is installed. Never raises: what needs something that cannot be imported will say so.
    """
    import pyarrow as pa

    try:
        pa.table({"key": ["a"], "value": [1]}).group_by("key").aggregate([("value", "sum")])
    except Exception as error:
        log.warning("Arrow cannot aggregate here: %s: %s", type(error).__name__, error)
