"""Table `day_totals`: an external system that applies a write action and its marker in one step, for `by_hand`."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_logio.contrib.paper_api import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable


class DayTotals:
    """Any SQL database that supports ON CONFLICT."""

    def __init__(self, url: str, marker: Marker) -> None:
        self.engine = sa.create_engine(url, hide_parameters=True)
        self.marker = marker

    def close(self) -> None:
        self.engine.dispose()

    def apply(self, action: WriteAction) -> None:
        rows = [{"run": self.marker.run_uid, **row} for row in action.records.to_pylist()]
        row = {"key": self.marker.key, "number": action.number, "token": self.marker.token}
        try:
            with self.engine.begin() as connection:
                for statement in PREPARE:
                    connection.execute(
                        sa.text(statement), row
                    )  # the last one locks the marker, unless a successor wrote
                number, token = connection.execute(sa.text(LOOK), row).one()
                for _ in self.marker.unapplied([action], number, token):
                    connection.execute(sa.text(INSERT), rows)
                    connection.execute(sa.text(ADVANCE), row)
        except sa.exc.OperationalError as error:
            raise ExternalUnavailable(f"the warehouse of day_totals: {error.orig}") from error


PREPARE = (
    "CREATE TABLE IF NOT EXISTS day_totals_marker (key TEXT PRIMARY KEY, number BIGINT, token BIGINT)",
    "CREATE TABLE IF NOT EXISTS day_totals (run TEXT, day BIGINT, place TEXT, total BIGINT, seen BIGINT)",
    "INSERT INTO day_totals_marker VALUES (:key, 0, 0) ON CONFLICT DO NOTHING",
    "UPDATE day_totals_marker SET token = :token WHERE key = :key AND token <= :token",
)
LOOK = "SELECT number, token FROM day_totals_marker WHERE key = :key"
INSERT = "INSERT INTO day_totals VALUES (:run, :day, :place, :total, :seen)"
ADVANCE = "UPDATE day_totals_marker SET number = :number WHERE key = :key"
