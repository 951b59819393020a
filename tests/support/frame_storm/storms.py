"""A random pipeline of DataFrames on processes of spark-submit that die where the seed says; its databases restart."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import psutil

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.protocol.liveness import Lease
from tests.support.frame_storm import oracle
from tests.support.frame_storm.places import Place, place_of
from tests.support.frame_storm.shape import Shape, drawn
from tests.support.postgres import PostgresServer
from tests.support.running import ArmedSparkLauncher, Running, running
from tests.support.storm.shape import turn

MOST_SECONDS = 400.0
POINTS = (
    CrashPoint.BEFORE_JOB,
    CrashPoint.AFTER_JOB,
    CrashPoint.AFTER_READ,
    CrashPoint.BEFORE_COMMIT,
    CrashPoint.AFTER_COMMIT,
    CrashPoint.BEFORE_WRITE,
    CrashPoint.AFTER_WRITE,
)
"""Where the first driver of each group dies, if it comes there; all of them are passed once by any pipeline."""


class Death(StrEnum):
    DRIVER = "its Python is killed"
    JVM = "its JVM is killed"
    NEITHER = "nothing but its crash point"


class Outage(StrEnum):
    POWER = "the server is stopped as by a power failure"
    RESTART = "the server is restarted in order"
    SESSIONS = "every session of its databases is ended"


def storm(seed: int, server: PostgresServer, folder: Path) -> None:
    """Raises AssertionError if what it leaves is not what it must, and notes the seed."""
    shape = drawn(seed)
    log_url = server.new_database()
    try:
        with place_of(shape, server, folder) as place:
            _blown(shape, place, server, log_url)
            oracle.check(shape, place)
    except BaseException as error:
        error.add_note(f"the storm of DataFrames of seed {seed}: {shape!r}")
        raise
    finally:
        with suppress(Exception):
            server.drop_database(log_url)


def _blown(shape: Shape, place: Place, server: PostgresServer, log_url: str) -> None:
    file = place.folder / f"frames_{shape.seed}.py"
    file.write_text(
        f"from tests.support.frame_storm.pipelines import pipeline_of\n\nmade = pipeline_of({shape.seed})\n"
    )
    dice = random.Random(f"frame weather {shape.seed}")
    last = "back" if shape.apart else "all"
    armed = {(group, 1): f"{dice.choice(POINTS)}:{dice.randint(1, 2)}" for group in {last, "front"}}
    launcher = ArmedSparkLauncher(place.folder / "drivers", armed)
    settings = {
        "ref": bundle.parse_ref(f"{file}:made"),
        "params": place.params(shape),
        "connections": place.connections,
        "payloads": str(place.folder / "payloads"),
        "lease": Lease(15, 120),
    }
    with running(log_url, "", Path(), launcher, **settings) as run:
        _kill(run, last, turn(shape.seed, "frame deaths", tuple(Death)), place, dice)
        run.until(
            lambda: run.is_running(last) and is_waited(place, run, last), "the last day waits", timeout=MOST_SECONDS
        )
        _away(server, turn(shape.seed, "frame outages", tuple(Outage)), log_url, place)
        (place.folder / "over").touch()
        run.finish(timeout=MOST_SECONDS)


def _kill(run: Running, group: str, death: Death, place: Place, dice: random.Random) -> None:
    """While it begins, or has begun all days but the last."""
    if death is Death.NEITHER:
        return
    ripe: Callable[[], bool] = dice.choice((lambda: True, lambda: is_waited(place, run, group)))
    run.until(lambda: run.is_running(group) and ripe(), "there is a driver to kill", timeout=MOST_SECONDS)
    with suppress(psutil.NoSuchProcess, ProcessLookupError):  # which has died at its crash point
        run.signal(group, signal.SIGKILL, jvm=death is Death.JVM)


def is_waited(place: Place, run: Running, group: str) -> bool:
    """Whether the function of the driver on record waits for the end of the storm."""
    identity = run.status(group).identity
    return identity is not None and Path(f"{place.folder / 'over'}.{identity.pid}").exists()


def _away(server: PostgresServer, outage: Outage, log_url: str, place: Place) -> None:
    if outage is Outage.SESSIONS:
        for url in (log_url, place.shop, place.warehouse):
            if not url.startswith("sqlite"):
                server.close_database(url)
                server.open_database(url)
        return
    server.stop(mode="immediate" if outage is Outage.POWER else "fast")
    server.start()
