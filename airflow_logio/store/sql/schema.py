"""The tables of the log, declared once. Migrations are checked against this module by a test.

Section 3.2 names five tables; each has the paper's columns plus `run_id`. `channel` is the sender side as one column
that is never null (a port's name, ``write:<connection>`` or ``read:<connection>``), because null sender ports, by which
the paper tells write actions apart, cannot be part of a key. The others hold runs, groups, drivers and counters.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    false,
    func,
    text,
    true,
)

REVISION = "0013"
"""The Alembic revision that creates what this module declares."""

VERSION_TABLE = "logio_alembic_version"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Id = BigInteger().with_variant(Integer(), "sqlite")
_Name = String(250)

# --- Section 3.2 ------------------------------------------------------------------------------------------------------

event_log = Table(
    "logio_event_log",
    metadata,
    Column("row_id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", _Id, nullable=False),
    Column("event_id", BigInteger, nullable=False),
    Column("status", String(8), nullable=False),
    Column("send_op", _Name, nullable=False),
    Column("send_port", _Name),
    Column("channel", _Name, nullable=False),
    Column("rec_op", _Name, nullable=False),
    Column("rec_port", _Name),
    Column("inset_id", _Name),
    Column("size", BigInteger, nullable=False, server_default=text("0")),
    Column("kept", Boolean, nullable=False, server_default=false()),  # a done row that lineage needs (Section 3.6)
)
Index(
    "uq_logio_event_log_row",
    event_log.c.run_id,
    event_log.c.send_op,
    event_log.c.channel,
    event_log.c.event_id,
    event_log.c.rec_op,
    func.coalesce(event_log.c.rec_port, ""),
    func.coalesce(event_log.c.inset_id, ""),
    unique=True,
)
Index("ix_logio_event_log_delivery", event_log.c.run_id, event_log.c.rec_op, event_log.c.rec_port, event_log.c.event_id)
Index("ix_logio_event_log_inset", event_log.c.run_id, event_log.c.rec_op, event_log.c.inset_id)

# Conditions of partial indexes. Queries repeat them word for word: SQLite sees no index through a bound parameter.
GARBAGE = "status = 'done' AND NOT kept"
READ_GARBAGE = "status = 'complete' AND NOT kept"
KEPT = "kept"
Index(
    "ix_logio_event_log_garbage",
    event_log.c.run_id,
    event_log.c.rec_op,
    sqlite_where=text(GARBAGE),
    postgresql_where=text(GARBAGE),
)

event_data = Table(
    "logio_event_data",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("send_op", _Name, primary_key=True),
    Column("channel", _Name, primary_key=True),
    Column("event_id", BigInteger, primary_key=True),
    Column("send_port", _Name),
    Column("header", LargeBinary, nullable=False),
    Column("body", LargeBinary),  # compressed where it is made: PostgreSQL stores it as it is (revision 0008)
    Column("ref", Text),  # into the payload store, if the body is there
    Column("kept", Boolean, nullable=False, server_default=false()),  # the sender port is in a lineage scope
    Column("logged_at", Double),  # set for kept bodies, for retention
)
Index(
    "ix_logio_event_data_kept",
    event_data.c.run_id,
    event_data.c.send_op,
    event_data.c.channel,
    event_data.c.event_id,
    event_data.c.logged_at,
    event_data.c.kept,  # to answer from the index alone: in a row of SQLite it lies behind the body
    sqlite_where=text(KEPT),
    postgresql_where=text(KEPT),
)

read_action = Table(
    "logio_read_action",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("op", _Name, primary_key=True),
    Column("conn_id", _Name, primary_key=True),
    Column("action_id", BigInteger, primary_key=True),
    Column("status", String(10), nullable=False),
    Column("action_desc", Text, nullable=False),
    Column("kept", Boolean, nullable=False, server_default=false()),
)
Index(
    "ix_logio_read_action_garbage",
    read_action.c.run_id,
    read_action.c.op,
    sqlite_where=text(READ_GARBAGE),
    postgresql_where=text(READ_GARBAGE),
)

state = Table(
    "logio_state",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("op", _Name, primary_key=True),
    Column("state_id", BigInteger, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),  # a checksum and the state (store/rules/row_forms.py)
    comment="state_id 0 is the current state of the operator; others are states as they were at a trigger",
)

event_lineage = Table(
    "logio_event_lineage",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("send_op", _Name, primary_key=True),
    Column("send_port", _Name, primary_key=True),
    Column("event_id", BigInteger, primary_key=True),
    Column("inset_id", _Name, primary_key=True),
)
Index("ix_logio_event_lineage_inset", event_lineage.c.run_id, event_lineage.c.send_op, event_lineage.c.inset_id)

# --- runs, groups, drivers --------------------------------------------------------------------------------------------

run = Table(
    "logio_run",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=True),
    Column("uid", String(32), nullable=False, unique=True),
    Column("pipeline", _Name, nullable=False),
    Column("dag_id", _Name, nullable=False),
    Column("dag_run_id", _Name, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("partition", _Name),  # the key of the day or hour that the run is for
    Column("ordinal", BigInteger, nullable=False),  # rises with each run of the pipeline: see `pipeline`
    Column("superseded_by", String(32)),  # the uid of the run that has begun in its place
    Column("because", Text),  # what a person said who had it computed again
    Column("next_allowed", Text),  # what the next run of its partition may do (JSON): said by that person
    Column("told", Text),  # what tasks have told of it (JSON): key of a task -> plain data of its own
    UniqueConstraint("pipeline", "dag_id", "dag_run_id", "generation"),
)
Index("ix_logio_run_partition", run.c.pipeline, run.c.partition, run.c.ordinal)
Index("ix_logio_run_ended_at", run.c.pipeline, run.c.ended_at)  # which are old enough to be removed
Index("ix_logio_run_ordinal", run.c.pipeline, run.c.ordinal)
Index("ix_logio_run_state", run.c.state, run.c.run_id)  # supervisors look for the few that are running
Index("ix_logio_run_dag_run_id", run.c.dag_run_id)
Index("ix_logio_run_dag_id", run.c.dag_id, run.c.run_id)

removed_run = Table(
    "logio_removed_run",
    metadata,
    Column("uid", String(32), primary_key=True),
    Column("pipeline", _Name, nullable=False),
    Column("dag_id", _Name, nullable=False),
    Column("dag_run_id", _Name, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("partition", _Name),
    Column("ordinal", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),  # that it was in; a person may give it up later
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("removed_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    comment="runs that are no longer in the log, or are being removed: which, when and why",
)
Index("ix_logio_removed_run_partition", removed_run.c.pipeline, removed_run.c.partition, removed_run.c.ordinal)
Index("ix_logio_removed_run_ordinal", removed_run.c.pipeline, removed_run.c.ordinal)
Index("ix_logio_removed_run_dag_run_id", removed_run.c.dag_run_id)

day_read = Table(
    "logio_day_read",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("op", _Name, primary_key=True),
    Column("place", Text, primary_key=True),  # a table or folder that runs own by value
    Column("scope", _Name, primary_key=True),  # which part of it: ``day=2026-03-01``
    Column(
        "live_run", String(32), primary_key=True
    ),  # the uid of the run that had left it as it was read; empty for none
    Column("is_whole", Boolean, nullable=False, server_default=true()),  # all that it was to have was there
    Column("read_at", Double, nullable=False),
    comment="which days, of tables and folders that runs own by value, a run has read, and as which run had left them",
)
Index("ix_logio_day_read_live_run", day_read.c.live_run)

pipeline = Table(
    "logio_pipeline",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("ordinal", BigInteger, nullable=False),  # the last one given; it stays when its run is removed
    Column("keep_seconds", Double),  # how long its ended runs stay; none: until a person removes them
    Column("swept_at", Double),  # when a supervisor has last begun to remove those
    Column("due", Text),  # what is to be there by when (JSON), as its youngest run says
    comment="the order of the runs of a pipeline: who begins one holds this row",
)

this_log = Table(
    "logio_log",
    metadata,
    Column("uid", String(32), primary_key=True),
    comment="one row: what tells this log from others; a copy of a log has the uid of its original",
)

start = Table(
    "logio_start",
    metadata,
    Column("pipeline", _Name, primary_key=True),
    Column("dag_id", _Name, primary_key=True),
    Column("dag_run_id", _Name, primary_key=True),
    Column("try_number", Integer, primary_key=True, autoincrement=False),
    Column("clear_number", Integer, nullable=False),
    Column("start_date", Double),
    Column("run_uid", String(32)),  # none before there is a run
    Column("decision", String(32)),
    Column("note", Text),
    comment="what each attempt of a task that starts runs has decided",
)
Index("ix_logio_start_run_uid", start.c.run_uid)

group = Table(
    "logio_group",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("desired", String(16), nullable=False),
    Column("since", Double, nullable=False),
    Column("error", Text),
    Column("launch", Text),  # how supervisors launch the group
    Column("code", Integer, nullable=False, server_default=text("0")),  # what the next driver gets: see `code_change`
    Column("drained_at", Double),  # its sources were told to end early, by a commit then
)

code = Table(
    "logio_code",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("digest", String(64), primary_key=True),
    Column("archive", LargeBinary, nullable=False),
    comment="what drivers of a run import, by its digest",
)

code_change = Table(
    "logio_code_change",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 1; 0 is the code that the run began with
    Column("group_name", _Name, nullable=False),  # the replicated group, for replicas
    Column("digest", String(64), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("taken_by", _Name, nullable=False),
    Column("taken_at", Double, nullable=False),
    comment="code that a person took for a group of a run that had begun with another one",
)

fence = Table(
    "logio_fence",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("commit_no", BigInteger, nullable=False),
)

driver = Table(
    "logio_driver",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, primary_key=True, autoincrement=False),
    Column("nonce", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("spends_budget", Boolean, nullable=False),
    Column("claimed_at", Double, nullable=False),
    Column("submitted_at", Double),
    Column("registered_at", Double),
    Column("first_commit_at", Double),
    Column("ended_at", Double),
    Column("error", Text),
    Column("failed_at", Text),
    Column("log_path", Text),
    Column("host", _Name),
    Column("boot_id", String(64)),
    Column("pid", Integer),
    Column("start_time", Double),
    Column("parent_pid", Integer),
    Column("parent_start_time", Double),
    Column("backend_pid", Integer),
    Column("code", Integer, nullable=False, server_default=text("0")),
    Column("submission", Text),  # JSON of `Submission`, as the launcher knows it
    Column("reported", Text),  # JSON of `Submission`, as the registered driver says it
    Column("manager_said", Text),  # JSON of `ManagerSaid`, of a driver that has not registered
    Column("said_at", Double),
    Column(
        "was_taken", Boolean, nullable=False, server_default=false()
    ),  # by its cluster manager: that spends no budget
    Column("gone_at", Double),  # since when its manager has confirmed the end of what was submitted
)
_IS_LEFT = and_(driver.c.submission.is_not(None), driver.c.gone_at.is_(None))
Index("ix_logio_driver_left", driver.c.run_id, postgresql_where=_IS_LEFT, sqlite_where=_IS_LEFT)

SENT, ACKNOWLEDGED, APPLIED = "out", "in", "write"
"""Directions of counters that are totals of the run, for an output port, an input port or a writer's connection."""
# `protocol.effects.LATE` is one more total: records of other partitions than the run's, by partition in column `port`.
OPEN, PENDING = "open", "pending"
"""Directions of counters of what is under way. They fall again: rows of EVENT_LOG that an input port has assigned and
that are not done; write actions of a writer's connection that are not. The commits that change these rows keep the
counters."""

port_counter = Table(
    "logio_port_counter",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("op", _Name, primary_key=True),
    Column("port", _Name, primary_key=True),
    Column("direction", String(8), primary_key=True),
    Column("events", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
)

quarantine = Table(
    "logio_quarantine",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("op", _Name, primary_key=True),
    Column("inset_id", _Name, primary_key=True),
    Column("group_name", _Name, nullable=False),
    Column("error", Text, nullable=False),
    Column("since", Double, nullable=False),
    comment="Input Sets whose generation raised and that are set aside until a person retries them",
)
Index("ix_logio_quarantine_count", quarantine.c.run_id, quarantine.c.group_name, quarantine.c.since)

# --- replicas (Section 7.1) -------------------------------------------------------------------------------------------

slot = Table(
    "logio_slot",
    metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),  # the replicated group
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("owner", _Name),  # the replica; none while the group is scaled to zero
    Column("moves", Integer, nullable=False),
    Column("done", Boolean, nullable=False),
    comment="which replica works on which slot of a replicated group",
)

scaling = Table(
    "logio_scaling",
    metadata,
    Column("request_id", _Id, primary_key=True, autoincrement=True),
    Column("run_id", _Id, nullable=False),
    Column("group_name", _Name, nullable=False),
    Column("replicas", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("asked_by", _Name, nullable=False),
    Column("reason", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("request_key", _Name),
    Column("requested_at", Double, nullable=False),
    Column("accepted_at", Double),
    Column("ended_at", Double),
    UniqueConstraint("run_id", "group_name", "request_key"),
    sqlite_autoincrement=True,  # a process that carries out a request of a removed run must not settle another
    comment="requests to scale a replicated group, and what has become of them",
)

# --- heartbeats: on SQLite in a file of their own, so that they never wait for a writer ------------------------------

beat_metadata = MetaData(naming_convention=metadata.naming_convention)

heartbeat = Table(
    "logio_heartbeat",
    beat_metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, primary_key=True, autoincrement=False),
    Column("beat", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("rss_bytes", BigInteger, nullable=False),
)

load = Table(
    "logio_load",
    beat_metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, primary_key=True, autoincrement=False),
    Column("figures", Text, nullable=False),
    comment="how busy drivers are, as they report with their heartbeats",
)

waiting = Table(
    "logio_waiting",
    beat_metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("parked", Boolean, nullable=False),
    comment="which groups want to be notified; a hint, written without waiting for the disk",
)

output = Table(
    "logio_output",
    beat_metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("mark", String(64), nullable=False),
    Column("at", Double, nullable=False),
    Column("text", Text, nullable=False),
    Index("ix_logio_output_at", "run_id", "at"),
    comment="the last lines that drivers have printed, without secrets",
)

address = Table(
    "logio_address",
    beat_metadata,
    Column("run_id", _Id, primary_key=True, autoincrement=False),
    Column("group_name", _Name, primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("client_certificate", Text, nullable=False),
    Column("client_key", Text, nullable=False),
    Column("token", Text, nullable=False),
    comment="where drivers hand over bodies that are not in the log, and what opens the door",
)

supervisor = Table(
    "logio_supervisor",
    beat_metadata,
    Column("name", _Name, primary_key=True),
    Column("pipeline", _Name),
    Column("run_uid", String(32)),
    Column("at", Double, nullable=False),
    comment="which processes look for failed groups, and when each last looked",
)
