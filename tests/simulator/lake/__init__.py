"""Datasets in the simulator: a payload store, the jobs that write into it, staging tables, and folders to publish in."""

from __future__ import annotations

from tests.simulator.lake.dataset_watch import DatasetWatch
from tests.simulator.lake.published import PublishedFolder
from tests.simulator.lake.staging import StagingDatabase

DATASET_INVARIANTS = (
    DatasetWatch.every_manifest_that_the_log_reaches_is_whole,
    DatasetWatch.no_file_has_two_owners,
    DatasetWatch.nothing_goes_that_a_living_row_names,
    DatasetWatch.files_go_before_what_names_them,
    DatasetWatch.nothing_unreachable_is_read,
    DatasetWatch.only_what_lineage_names_is_left,
    PublishedFolder.what_is_published_never_changes,
    PublishedFolder.a_receipt_names_files_that_are_there,
    PublishedFolder.what_is_published_is_what_receipts_name,
    PublishedFolder.an_action_is_published_once,
    StagingDatabase.no_staging_table_is_left,
)
"""Checked at every transaction, removal and publication of a schedule with datasets, beside those of the log."""
