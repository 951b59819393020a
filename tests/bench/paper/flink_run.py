"""A run on Flink: asynchronous barrier snapshots, aligned, exactly once. Ended if it lasts too long."""

from __future__ import annotations

from pathlib import Path

from demo.standalone import free_port
from tests.bench.paper import flink_settings
from tests.bench.paper.flink_cluster import FlinkCluster
from tests.bench.paper.scaled import Scaled
from tests.bench.throughput import WrongResult


def run_flink(
    folder: Path, marks: Path, wanted: Scaled, failures: int, warehouse: str, limit: float
) -> list[dict[str, float]]:
    """The source begins when all operators are up. Returns of each failure when the failed operator was up again.

    Raises `WrongResult`.
    """
    flink = folder / "flink"
    flink.mkdir()
    (flink / "config.yaml").write_text(flink_settings.cluster(wanted, flink, free_port()))
    (flink / "log4j.properties").write_text(flink_settings.LOGGED)
    (flink / "job.properties").write_text(flink_settings.job(wanted, failures, marks, warehouse))
    operators = flink_settings.operators(wanted.shape)

    def look() -> None:
        if all((marks / f"{name}.opened").is_file() for name in operators):
            (marks / "go").touch()

    cluster = FlinkCluster(flink, len(operators) + 1)  # one to spare, for who was killed
    try:
        cluster.watch(limit, look)
    finally:
        cluster.close()
    return _recoveries(marks, wanted.fails)


def _recoveries(marks: Path, failed: str) -> list[dict[str, float]]:
    openings = [float(line) for file in marks.glob(f"{failed}.*.opened") for line in file.read_text().splitlines()]
    found = []
    for mark in sorted(marks.glob("killed-*")):
        killed_at = float(mark.read_text())
        later = [at for at in openings if at > killed_at]
        if not later:
            raise WrongResult(f"{failed} was killed and was not up again")
        found.append({"restarted": round(min(later) - killed_at, 2)})
    return found
