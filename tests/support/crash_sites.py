"""Which named crash points which suite goes through, by the ends of their names: a new one is tested by existing.

What has no suite of its own here is gone through by `acceptance/test_crash_points.py`, and fails there if it is not reached.
"""

from __future__ import annotations

from airflow_logio.crash import CrashPoint


def named(*ends: str) -> list[CrashPoint]:
    """The crash points whose names end so."""
    return [point for point in CrashPoint if point.endswith(ends)]


IN_LAKES = named("_dataset_job", "_manifest", "_placing", "_publication")
"""test_lake.py: by drivers of mode ``dataframe``."""
IN_STAGINGS = named("_staging", "_unstaging", "_staging_sweep")
"""test_staging.py: by writers of tables behind operators of mode ``dataframe``."""
IN_CLEARINGS = named("_receipt", "_clearing")
"""test_lake_days.py: by writers that own a day of a lake."""
IN_SPARK = [point for point in named("_job") if point not in IN_LAKES]
"""test_spark_drivers.py: passed by drivers with a Spark session only."""
IN_STORES = named("_store", "_drop")
"""test_sources.py: by sources that cannot be replayed."""
IN_FORGETS = named("_forget")
"""test_spark_sources.py: by sources of ranges that forget."""
IN_PAYLOADS = [point for point in named("_body", "_sweep") if point not in IN_STAGINGS]
"""test_sources.py: by drivers whose bodies are too large for the log."""
IN_REMOVALS = named("_removal")
"""test_sources.py: by those that live on when such bodies are collected."""
IN_DRAINS = named("_drain")
"""test_draining.py: by drivers that are asked to drain."""
IN_HALTS = named("_halt")
"""test_halting_for_good.py: by drivers that are asked to halt."""
IN_REPORTS = named("_report")
"""test_operator_errors.py: by drivers whose operators raise."""
IN_REBUILDS = named("_rebuild")
"""test_operator_errors.py: by drivers whose Input Sets are put back while they run."""
IN_PARKS = named("_park")
"""test_writers.py: by drivers whose external systems stay away."""
IN_CLOSINGS = named("_closing")
"""test_closing_points.py: by writers whose write actions are held."""
IN_QUESTIONS = named("_question")
"""test_writers.py: by checkable writers."""
IN_SWITCHES = named("_switch")
"""unit/systems/test_days.py: by writers of tables that own a day."""
IN_AUDITS = named("_audit")
"""test_audits.py, test_lake_days.py: by writers that own a day, with SQL that must find no fault in it."""
IN_EXTERNAL_WRITES = named("_external_write")
"""test_writers.py: by writers of an author's own external systems."""
IN_LAKE_COMMITS = named("_lake_files", "_lake_commit")
"""test_delta.py: by writers of Delta tables."""
IN_SUBMISSIONS = named("_submission", "_submission_note")
"""unit/launch/test_cluster_launch.py: by launchers of drivers on clusters."""

ELSEWHERE = frozenset(
    IN_SPARK
    + IN_LAKE_COMMITS
    + IN_LAKES
    + IN_CLEARINGS
    + IN_STAGINGS
    + IN_STORES
    + IN_FORGETS
    + IN_PAYLOADS
    + IN_REMOVALS
    + IN_DRAINS
    + IN_HALTS
    + IN_REPORTS
    + IN_REBUILDS
    + IN_PARKS
    + IN_CLOSINGS
    + IN_QUESTIONS
    + IN_EXTERNAL_WRITES
    + IN_SWITCHES
    + IN_AUDITS
    + IN_SUBMISSIONS
)
"""Gone through by the suites named above, and not by `acceptance/test_crash_points.py`."""

# --- what a driver passes that replaces a day of a table, in its order ------------------------------------------------

_IN_TRANSACTION = f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1"
OPENING = (f"{CrashPoint.BEFORE_WRITE}:1", _IN_TRANSACTION, f"{CrashPoint.AFTER_WRITE}:1")
QUESTION = tuple(f"{point}:1" for point in IN_CLOSINGS)
SWITCH = (*(f"{point}:1" for point in IN_SWITCHES), *OPENING)
"""One that finds the opening applied dies around the closing."""
