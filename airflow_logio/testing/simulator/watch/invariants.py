"""All invariants of the log. Each is a method of a watch, and its name is the sentence that holds."""

from __future__ import annotations

from airflow_logio.testing.simulator.data.published import PublishedFolder
from airflow_logio.testing.simulator.data.staging_database import StagingDatabase
from airflow_logio.testing.simulator.watch.contexts import ContextWatch
from airflow_logio.testing.simulator.watch.dataset_watch import DatasetWatch
from airflow_logio.testing.simulator.watch.drain_watch import DrainWatch
from airflow_logio.testing.simulator.watch.driver_watch import DriverWatch
from airflow_logio.testing.simulator.watch.event_watch import EventWatch
from airflow_logio.testing.simulator.watch.group_rows import GroupRowWatch
from airflow_logio.testing.simulator.watch.scaling_watch import ScalingWatch
from airflow_logio.testing.simulator.watch.slot_watch import SlotWatch

INVARIANTS = (
    DriverWatch.a_write_action_is_logged_before_it_is_applied,
    DriverWatch.a_lower_token_writes_nothing,
    DriverWatch.a_replaced_driver_commits_nothing,
    DriverWatch.a_replaced_driver_has_no_heartbeat,
    DriverWatch.a_complete_read_action_is_never_read_again,
    EventWatch.event_ids_are_gapless,
    EventWatch.the_end_of_a_stream_is_once_and_last,
    EventWatch.a_body_never_changes,
    EventWatch.no_body_is_collected_that_is_needed,
    EventWatch.what_is_in_retention_is_kept,
    EventWatch.no_event_enters_an_input_set_twice,
    EventWatch.done_never_becomes_undone,
    EventWatch.nothing_undone_is_removed,
    EventWatch.an_undone_row_has_its_body,
    EventWatch.a_write_action_is_done_when_it_is_applied,
    ContextWatch.acknowledgements_are_a_prefix,
    ContextWatch.marks_are_what_was_acknowledged,
    ContextWatch.a_context_never_goes_back,
    EventWatch.what_is_done_is_closed,
    ContextWatch.closed_input_sets_stay_closed,
    GroupRowWatch.fences_only_rise,
    DrainWatch.what_is_to_drain_reads_no_further,
    GroupRowWatch.a_drain_is_not_taken_back,
    EventWatch.lineage_names_events_of_the_log,
    EventWatch.lineage_goes_with_its_event,
    GroupRowWatch.a_finished_group_holds_nothing,
    SlotWatch.only_its_owner_commits_for_a_slot,
    SlotWatch.a_retired_replica_commits_nothing,
    SlotWatch.a_slot_that_is_done_never_moves,
    SlotWatch.who_loses_or_gains_a_slot_gets_a_new_epoch,
    SlotWatch.a_slot_is_done_when_its_operators_have_ended,
    SlotWatch.a_retired_replica_is_launched_by_a_request_alone,
    SlotWatch.a_retired_replica_owns_no_open_slot,
    SlotWatch.a_run_has_finished_when_all_is_done,
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
    ScalingWatch.a_key_names_one_request,
    ScalingWatch.a_request_is_settled_once,
    ScalingWatch.one_request_of_a_group_is_open,
    ScalingWatch.nothing_moves_for_a_settled_request,
    ScalingWatch.slots_are_placed_as_was_asked,
    ScalingWatch.what_is_done_was_done_before,
    ScalingWatch.a_replica_is_launched_for_an_open_request,
    ScalingWatch.no_request_stays_open,
)
"""Checked at every transaction of every schedule on a log in memory."""
