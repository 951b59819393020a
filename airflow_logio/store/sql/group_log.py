"""Groups and their drivers: moves between states, each a compare-and-set on the incarnation (design D8)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import BudgetSpent, FailurePoint, Fenced, LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.liveness import TAKEN_BUDGET, RecoveryBudget
from airflow_logio.protocol.states import (
    LAUNCHING,
    STOPPED,
    GroupState,
    RunState,
    allowed_from,
    check_claim,
    check_wish,
    wish_after_claim,
)
from airflow_logio.protocol.values import storable
from airflow_logio.store.port.group_port import GroupLog
from airflow_logio.store.records.driver_records import (
    Claim,
    DriverIdentity,
    GroupRef,
    LaunchRecipe,
    Load,
    Refused,
    Submission,
)
from airflow_logio.store.records.run_records import Run, has_sources
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.rules.place_rules import GroupCounts, asks_for_place, check_place, runs_ahead
from airflow_logio.store.rules.run_rules import superseded, taken_too_often
from airflow_logio.store.rules.scaling_rules import check_going_on
from airflow_logio.store.sql import scaling_requests, schema
from airflow_logio.store.sql.beats import BeatCheck, wish, write_beat
from airflow_logio.store.sql.cluster_log import submission_text, was_accepted
from airflow_logio.store.sql.engines import now, reading, writing
from airflow_logio.store.sql.group_statuses import statuses
from airflow_logio.store.sql.hearings import announce_failure
from airflow_logio.store.sql.run_log import lock_pipeline
from airflow_logio.store.sql.runs import SqlPart, known


class SqlGroupLog(SqlPart, GroupLog):
    """Groups and their drivers."""

    _beat_check: BeatCheck

    @property
    def ends_old_driver_first(self) -> bool:
        """A stopped writer shuts every process out of an SQLite file: its process must end before the fence can be
        raised."""
        return self.engine.dialect.name == "sqlite"

    def groups(self, run_id: int) -> Sequence[GroupStatus]:
        with reading(self.engine) as connection:
            return statuses(connection, self.beats, [run_id])[run_id]

    def group(self, run_id: int, group: str) -> GroupStatus:
        with reading(self.engine) as connection:
            found = statuses(connection, self.beats, [run_id], group)[run_id]
        if not found:
            with reading(self.engine) as connection:
                run = self._run(connection, run_id)
            raise UnknownRun(f"run {run.spec.key} has no group {group!r}; it has {', '.join(run.spec.groups)}")
        return found[0]

    def claim(
        self,
        run_id: int,
        group: str,
        *,
        expected: int,
        reason: str,
        by_user: bool = False,
        request_id: int | None = None,
    ) -> Claim:
        def attempt() -> Claim | Refused:
            return self._claim(run_id, group, expected, reason, by_user=by_user, request_id=request_id)

        made = self._past_stopped_driver(GroupRef(run_id, group, expected), attempt)
        if isinstance(made, Refused):
            raise made.error
        return made

    def _claim(
        self, run_id: int, group: str, expected: int, reason: str, *, by_user: bool, request_id: int | None
    ) -> Claim | Refused:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return claim(
                connection, run, group, expected=expected, reason=reason, by_user=by_user, request_id=request_id
            )

    def runs_ahead(self, run_ids: Collection[int]) -> Mapping[int, int | None]:
        asked: dict[str, list[Run]] = {}
        found: dict[int, int | None] = {}
        with reading(self.engine) as connection:
            for run_id in run_ids:
                with suppress(UnknownRun, LogInconsistent):
                    run = self._run(connection, run_id)
                    asked.setdefault(run.spec.key.pipeline, []).append(run)
            for pipeline, runs in asked.items():
                counts, begun = _group_counts(connection, pipeline), _claimed(connection, runs)
                for run in runs:
                    found[run.run_id] = runs_ahead(run, counts, was_claimed=run.run_id in begun)
        return found

    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        with writing(self.engine) as connection:
            return submitted(connection, claim, log_path, launcher)

    def register(self, claim: Claim, identity: DriverIdentity, *, reported: Submission | None = None) -> GroupRef:
        with writing(self.engine) as connection:
            if not register(connection, claim, identity, reported):
                raise Fenced(
                    f"incarnation {claim.incarnation} of group {claim.group!r} cannot be registered: it was replaced, "
                    "ended, or another process holds it; this driver exits before its first read"
                )
        return GroupRef(claim.run_id, claim.group, claim.incarnation, claim.code)

    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        with reading(self.engine) as connection:
            desired = wish(connection, ref)
        # A slow disk must not look like the death of every driver.
        with writing(self.beats, durable=False) as connection:
            write_beat(connection, ref, beat, ready=ready, rss_bytes=rss_bytes, load=load)
        return desired

    def check_heartbeats(self) -> None:
        self._beat_check.check()

    def declare_dead(
        self,
        ref: GroupRef,
        cause: str,
        *,
        failed_at: FailurePoint | None = None,
        was_taken: bool = False,
        unregistered: bool = False,
    ) -> bool:
        only = LAUNCHING if unregistered else None
        declared = self._end(ref, GroupState.DEAD, cause, failed_at, was_taken=was_taken, only=only)
        if declared and self.engine.dialect.name == "postgresql":
            announce_failure(self.engine)
        return declared

    def park(self, ref: GroupRef, error: str) -> bool:
        return self._end(ref, GroupState.PARKED, error)

    def halted(self, ref: GroupRef) -> bool:
        return self._end(ref, GroupState.HALTED, None)

    def _end(
        self,
        ref: GroupRef,
        target: GroupState,
        error: str | None,
        failed_at: FailurePoint | None = None,
        *,
        was_taken: bool = False,
        only: Collection[GroupState] | None = None,
    ) -> bool:
        def attempt() -> bool:
            with writing(self.engine) as connection:
                if only is not None and lock_group(connection, ref.run_id, ref.group)[0] not in only:
                    return False
                moved = move(connection, ref, target, error=error)
                if moved:
                    end_driver(connection, ref, error, failed_at, was_taken=was_taken)
                return moved

        return self._past_stopped_driver(ref, attempt)

    def request(self, run_id: int, group: str, desired: GroupState, *, incarnation: int | None = None) -> bool:
        with writing(self.engine) as connection:
            return request(connection, self._as_seen(connection, run_id), group, desired, incarnation)

    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        launch = msgspec.json.encode(recipe).decode()
        with writing(self.engine) as connection:
            connection.execute(sa.update(schema.group).where(*_of(schema.group, run_id, group)).values(launch=launch))

    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        """Raises `LogInconsistent` for a recipe that cannot be read."""
        query = sa.select(schema.group.c.launch).where(*_of(schema.group, run_id, group))
        with reading(self.engine) as connection:
            text = connection.execute(query).scalar_one_or_none()
        try:
            return None if text is None else msgspec.json.decode(text, type=LaunchRecipe)
        except msgspec.MsgspecError as error:
            raise LogInconsistent(
                f"the launch recipe of group {group!r} of run {run_id} cannot be read: {error}"
            ) from error


def _of(table: sa.Table, run_id: int, group: str) -> list[sa.ColumnElement[bool]]:
    return [table.c.run_id == run_id, table.c.group_name == group]


def _driver(claim: Claim | GroupRef) -> list[sa.ColumnElement[bool]]:
    table = schema.driver
    return [*_of(table, claim.run_id, claim.group), table.c.incarnation == claim.incarnation]


def lock_group(connection: Connection, run_id: int, group: str) -> tuple[GroupState, int]:
    """State and incarnation, with both rows locked: fence first, as everywhere."""
    fence, groups = schema.fence, schema.group
    incarnation = connection.execute(
        sa.select(fence.c.incarnation).where(*_of(fence, run_id, group)).with_for_update()
    ).scalar_one_or_none()
    state = connection.execute(
        sa.select(groups.c.state).where(*_of(groups, run_id, group)).with_for_update()
    ).scalar_one_or_none()
    if incarnation is None or state is None:
        raise ProtocolViolation(f"run {run_id} has no group {group!r}")
    return known(GroupState, state, f"the state of group {group!r}"), incarnation


def move(connection: Connection, ref: Claim | GroupRef, target: GroupState, *, error: str | None = None) -> bool:
    """Enter `target` if the incarnation still holds and the table allows it; False if not. Nothing else changes."""
    state, incarnation = lock_group(connection, ref.run_id, ref.group)
    if incarnation != ref.incarnation or state not in allowed_from(target):
        return False
    groups = schema.group
    values = {"state": target.value, "since": now(connection.dialect.name), "error": storable(error)}
    if target in (GroupState.HALTED, GroupState.RETIRED):
        values["desired"] = GroupState.HALTED.value
    connection.execute(sa.update(groups).where(*_of(groups, ref.run_id, ref.group)).values(**values))
    if target in STOPPED:  # its driver may be alive, or come back: it commits nothing more
        fence = schema.fence
        raised = sa.update(fence).where(*_of(fence, ref.run_id, ref.group))
        connection.execute(raised.values(epoch=fence.c.epoch + 1))
    return True


def request(connection: Connection, run: Run, group: str, wish: GroupState, incarnation: int | None) -> bool:
    """Note a desired state; False if it is for an incarnation that was replaced."""
    fence, groups = schema.fence, schema.group
    if incarnation is not None:  # the fence first, as everywhere: a claim either sees the wish, or came before it
        held = sa.select(fence.c.incarnation).where(*_of(fence, run.run_id, group)).with_for_update()
        if connection.execute(held).scalar_one_or_none() != incarnation:
            return False
    row = connection.execute(
        sa.select(groups.c.state, groups.c.desired).where(*_of(groups, run.run_id, group)).with_for_update()
    ).one_or_none()
    if row is None:
        raise ProtocolViolation(f"run {run.run_id} has no group {group!r}")
    state = known(GroupState, row.state, f"the state of group {group!r}")
    desired = known(GroupState, row.desired, f"the desired state of group {group!r}")
    if check_wish(group, state, desired, wish, has_sources=has_sources(run.spec, group)):
        connection.execute(sa.update(groups).where(*_of(groups, run.run_id, group)).values(desired=wish.value))
    return True


def end_driver(
    connection: Connection,
    ref: Claim | GroupRef,
    error: str | None,
    failed_at: FailurePoint | None = None,
    *,
    was_taken: bool = False,
) -> None:
    table = schema.driver
    point = None if failed_at is None else str(failed_at)
    connection.execute(
        sa.update(table)
        .where(*_driver(ref), table.c.ended_at.is_(None))
        .values(
            ended_at=now(connection.dialect.name),
            error=storable(error),
            failed_at=storable(point),
            was_taken=was_taken,
        )
    )


def claim(
    connection: Connection,
    run: Run,
    group: str,
    *,
    expected: int,
    reason: str,
    by_user: bool,
    request_id: int | None = None,
) -> Claim | Refused:
    """Raise the incarnation, or move the group to the state where it belongs instead.

    The first claims of all runs of a pipeline take turns where drivers are bounded, so that two of them do not both get the
    last place. Its row is locked before the group's rows, as by a start; a recovery, which may hold others up, locks none.
    """
    recovery = expected > 0
    asks = not recovery and asks_for_place(run, by_user=by_user, request_id=request_id)
    if asks:
        lock_pipeline(connection, run.spec.key.pipeline)
    state, incarnation = lock_group(connection, run.run_id, group)
    if incarnation != expected:
        raise Fenced(f"group {group!r} was claimed by another process: incarnation {incarnation}, expected {expected}")
    _check_current(connection, run, state, request_id)
    check_claim(group, state, by_user=by_user)
    spends = recovery and not by_user
    ref = GroupRef(run.run_id, group, expected)
    if spends and (causes := _budget_spent(connection, run, group, run.spec.budget)):
        text = f"{causes}\nlast cause: {reason}"
        move(connection, ref, GroupState.PARKED, error=text)
        end_driver(connection, ref, reason)
        return Refused(BudgetSpent(text))
    if asks and _desired(connection, run, group) is not GroupState.HALTED:
        counts = _group_counts(connection, run.spec.key.pipeline)
        check_place(run, counts, was_claimed=bool(_claimed(connection, [run])))
    end_driver(connection, ref, reason)
    if not by_user and _desired(connection, run, group) is GroupState.HALTED:
        move(connection, ref, GroupState.HALTED)
        return Refused(ProtocolViolation(f"group {group!r} was asked to halt, and is not recovered"))
    return _raise_incarnation(connection, run, group, expected + 1, reason, spends=spends)


def _check_current(connection: Connection, run: Run, state: GroupState, request_id: int | None) -> None:
    """Runs under the group's lock. To give the run up, a process must hold the locks of all groups.

    To finish a run, a process ignores retired replicas and holds the run's row. Either it sees that one of them is
    claimed, or the claim sees that the run has finished; otherwise a driver would wait for slots for ever. To ask for
    other replicas, a process holds the run's row as well: a claim for an older request comes before that, or sees it.
    """
    table = schema.run
    query = sa.select(table.c.state).where(table.c.run_id == run.run_id)
    if state is GroupState.RETIRED or request_id is not None:
        query = query.with_for_update(read=True)
    found = connection.execute(query).scalar_one_or_none()
    if found == RunState.SUPERSEDED.value:
        raise ProtocolViolation(superseded(run))
    if state is GroupState.RETIRED and found is not None:
        check_going_on(run, known(RunState, found, f"the state of run {run.uid}"))
    if request_id is not None:
        scaling_requests.check_is_open(connection, request_id)


def _claimed(connection: Connection, runs: Sequence[Run]) -> set[int]:
    """Those of which a group was ever claimed, by their numbers."""
    fence = schema.fence
    numbers = [run.run_id for run in runs]
    query = sa.select(fence.c.run_id).where(fence.c.run_id.in_(numbers), fence.c.incarnation > 0).distinct()
    return set(connection.execute(query).scalars())


def _group_counts(connection: Connection, pipeline: str) -> dict[int, GroupCounts]:
    """Run → its groups by state, of all runs of the pipeline that may have drivers."""
    runs, groups = schema.run, schema.group
    query = (
        sa.select(groups.c.run_id, groups.c.state, sa.func.count().label("many"))
        .join(runs, runs.c.run_id == groups.c.run_id)
        .where(runs.c.pipeline == pipeline, runs.c.state == RunState.RUNNING.value)
        .group_by(groups.c.run_id, groups.c.state)
    )
    found: dict[int, dict[GroupState, int]] = {}
    for row in connection.execute(query):
        state = known(GroupState, row.state, f"the state of a group of run {row.run_id}")
        found.setdefault(row.run_id, {})[state] = row.many
    return dict(found)


def _desired(connection: Connection, run: Run, group: str) -> GroupState:
    table = schema.group
    desired = connection.execute(sa.select(table.c.desired).where(*_of(table, run.run_id, group))).scalar_one()
    return known(GroupState, desired, f"the desired state of group {group!r}")


def _raise_incarnation(
    connection: Connection, run: Run, group: str, incarnation: int, reason: str, *, spends: bool
) -> Claim:
    fence, groups, clock = schema.fence, schema.group, now(connection.dialect.name)
    desired = wish_after_claim(_desired(connection, run, group))
    code = connection.execute(sa.select(groups.c.code).where(*_of(groups, run.run_id, group))).scalar_one()
    made = Claim(run.run_id, run.uid, group, incarnation, uuid.uuid4().hex, recovery=incarnation > 1, code=code)
    connection.execute(sa.update(fence).where(*_of(fence, run.run_id, group)).values(incarnation=incarnation))
    connection.execute(
        sa.insert(schema.driver).values(
            run_id=run.run_id,
            group_name=group,
            incarnation=incarnation,
            nonce=made.nonce,
            reason=storable(reason),
            spends_budget=spends,
            claimed_at=clock,
            code=code,
        )
    )
    connection.execute(
        sa.update(groups)
        .where(*_of(groups, run.run_id, group))
        .values(state=GroupState.CLAIMED.value, desired=desired.value, since=clock, error=None)
    )
    return made


def _last_by_user(run: Run, group: str) -> sa.ScalarSelect[int]:
    """The newest incarnation that a person started: what happened before it is forgiven."""
    driver = schema.driver.alias()
    return (
        sa.select(sa.func.max(driver.c.incarnation))
        .where(
            driver.c.run_id == run.run_id,
            driver.c.group_name == group,
            driver.c.incarnation > 1,
            ~driver.c.spends_budget,
        )
        .scalar_subquery()
    )


def _budget_spent(connection: Connection, run: Run, group: str, budget: RecoveryBudget) -> str | None:
    driver = schema.driver
    clock = now(connection.dialect.name)
    forgiven = sa.func.coalesce(_last_by_user(run, group), 0)
    columns = driver.c.failed_at, driver.c.was_taken
    ended = sa.select(*columns).where(*_of(driver, run.run_id, group), driver.c.incarnation >= forgiven)
    ends = connection.execute(ended.order_by(driver.c.incarnation)).all()
    points = [end.failed_at for end in ends]
    if budget.is_spent_at(points):
        return failed_again(group, budget, str(points[-1]))
    before = schema.driver.alias()
    rows = connection.execute(
        sa.select(
            *((clock - driver.c.claimed_at).label("age"), driver.c.incarnation, driver.c.reason),
            before.c.was_taken.label("is_free"),
            before.c.submission,
        )
        .join(
            before,
            sa.and_(
                before.c.run_id == driver.c.run_id,
                before.c.group_name == driver.c.group_name,
                before.c.incarnation == driver.c.incarnation - 1,
            ),
        )
        .where(
            *_of(driver, run.run_id, group),
            driver.c.spends_budget,
            driver.c.incarnation > forgiven,
        )
        .order_by(driver.c.incarnation)
    ).all()
    if TAKEN_BUDGET.is_spent([row.age for row in rows if row.is_free and was_accepted(row.submission)]):
        return taken_too_often(group)
    rows = [row for row in rows if not row.is_free]
    if (ends and ends[-1].was_taken) or not budget.is_spent([row.age for row in rows]):
        return None
    causes = "\n".join(f"  incarnation {row.incarnation}: {row.reason}" for row in rows[-budget.recoveries :])
    return (
        f"group {group!r} was recovered {budget.recoveries} times within {budget.window_seconds:g} s and failed again; "
        f"it is parked. Recoveries:\n{causes}"
    )


def failed_again(group: str, budget: RecoveryBudget, point: str) -> str:
    """The error of a group that is parked because its recoveries always end at the same place."""
    return (
        f"group {group!r} failed at {point} again after {budget.same_event} recoveries; it is parked. Fix the operator, "
        "or the data it cannot use, and `logio retry` the group (--code new after a change of the code)"
    )


def register(
    connection: Connection, claim: Claim, identity: DriverIdentity, reported: Submission | None = None
) -> bool:
    """Compare-and-set on nonce and on not being registered: two processes cannot hold one incarnation.

    The same process may ask again, because its acknowledgement was lost. After False, the caller must roll back:
    nothing of the attempt may stay.
    """
    if _holds(connection, claim, identity):
        return True
    if not move(connection, claim, GroupState.RUNNING):
        return False
    table = schema.driver
    took = connection.execute(
        sa.update(table)
        .where(*_driver(claim), table.c.nonce == claim.nonce, table.c.registered_at.is_(None))
        .values(
            registered_at=now(connection.dialect.name),
            reported=submission_text(reported),
            **identity_columns(identity, connection),
        )
    ).rowcount
    return took == 1


def _holds(connection: Connection, claim: Claim, identity: DriverIdentity) -> bool:
    _, incarnation = lock_group(connection, claim.run_id, claim.group)
    table = schema.driver
    mine = sa.select(table.c.pid).where(
        *_driver(claim),
        table.c.nonce == claim.nonce,
        table.c.registered_at.is_not(None),
        table.c.host == identity.host,
        table.c.boot_id == identity.boot_id,
        table.c.pid == identity.pid,
        table.c.start_time == identity.start_time,
    )
    return incarnation == claim.incarnation and connection.execute(mine).one_or_none() is not None


def submitted(connection: Connection, claim: Claim, log_path: str | None, launcher: DriverIdentity | None) -> bool:
    state, incarnation = lock_group(connection, claim.run_id, claim.group)
    table = schema.driver
    values: dict[str, Any] = {"submitted_at": now(connection.dialect.name), "log_path": log_path}
    connection.execute(sa.update(table).where(*_driver(claim)).values(**values))
    if launcher is not None:
        ours = {
            "parent_pid": launcher.pid,
            "parent_start_time": launcher.start_time,
            "host": launcher.host,
            "boot_id": launcher.boot_id,
        }
        has_not_registered = table.c.registered_at.is_(None)
        connection.execute(sa.update(table).where(*_driver(claim), has_not_registered).values(**ours))
    if state is not GroupState.CLAIMED or incarnation != claim.incarnation:
        return False
    return move(connection, claim, GroupState.RESTARTED if claim.recovery else GroupState.SUBMITTED)


def identity_columns(identity: DriverIdentity, connection: Connection) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "host": identity.host,
        "boot_id": identity.boot_id,
        "pid": identity.pid,
        "start_time": identity.start_time,
    }
    if identity.parent_pid:
        columns |= {"parent_pid": identity.parent_pid, "parent_start_time": identity.parent_start_time}
    if connection.dialect.name == "postgresql":
        columns["backend_pid"] = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
    return columns
