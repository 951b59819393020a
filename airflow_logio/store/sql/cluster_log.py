"""Drivers on clusters, in columns of their rows. Each write is one statement, and none asks for another's lock."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import sqlalchemy as sa

from airflow_logio.protocol.states import ENDED, GroupState, RunState
from airflow_logio.protocol.values import storable
from airflow_logio.store.port.cluster_port import ClusterLog
from airflow_logio.store.records.driver_records import Claim, GroupRef, LeftDriver, ManagerSaid, Submission, known_as
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now, reading, writing
from airflow_logio.store.sql.runs import SqlPart

_OVER = (RunState.FINISHED, RunState.QUARANTINED, RunState.SUPERSEDED, RunState.REMOVING)


class SqlClusterLog(SqlPart, ClusterLog):
    """The columns `submission`, `reported`, `manager_said` and `gone_at` of `logio_driver`."""

    def submitting(self, claim: Claim, submission: Submission) -> bool:
        fence, groups, driver = schema.fence, schema.group, schema.driver
        of_claim = (fence.c.run_id == claim.run_id, fence.c.group_name == claim.group)
        is_current = sa.exists().where(*of_claim, fence.c.incarnation == claim.incarnation)
        of_group = (groups.c.run_id == claim.run_id, groups.c.group_name == claim.group)
        is_claimed = sa.exists().where(*of_group, groups.c.state == GroupState.CLAIMED.value)
        mine = (driver.c.nonce == claim.nonce, driver.c.submission.is_(None), is_current, is_claimed)
        return self._set(claim, *mine, submission=submission_text(submission)) == 1

    def note_id(self, ref: GroupRef, submission: Submission) -> None:
        table = schema.driver
        with writing(self.engine) as connection:
            kept = submission_of(
                connection.execute(
                    sa.select(table.c.submission).where(*_of(ref)).with_for_update()
                ).scalar_one_or_none()
            )
            if kept is None or not kept.id:
                values = {"submission": submission_text(submission), "gone_at": None}
                connection.execute(sa.update(table).where(*_of(ref)).values(**values))

    def note_said(self, ref: GroupRef, said: ManagerSaid) -> None:
        said = msgspec.structs.replace(said, why=str(storable(said.why)))
        text = msgspec.json.encode(said).decode()
        clock = now(self.engine.dialect.name)
        self._set(ref, schema.driver.c.registered_at.is_(None), manager_said=text, said_at=clock)

    def note_taken(self, ref: GroupRef) -> None:
        self._set(ref, was_taken=True)

    def note_gone(self, ref: GroupRef) -> None:
        self._set(ref, schema.driver.c.gone_at.is_(None), gone_at=now(self.engine.dialect.name))

    def left_on_clusters(self, run_ids: Collection[int] | None = None, *, most: int = 1000) -> Sequence[LeftDriver]:
        driver, fence, groups, runs = schema.driver, schema.fence, schema.group, schema.run
        clock = now(self.engine.dialect.name)
        of_group = [driver.c[name] == table.c[name] for table in (fence, groups) for name in ("run_id", "group_name")]
        is_over = sa.or_(
            fence.c.incarnation > driver.c.incarnation,
            groups.c.state.in_([state.value for state in ENDED]),
            runs.c.state.in_([state.value for state in _OVER]),
        )
        query = (
            sa.select(
                *(driver, (fence.c.incarnation > driver.c.incarnation).label("is_replaced")),
                *((clock - driver.c.claimed_at).label("claimed"), (clock - groups.c.since).label("ended")),
            )
            .join(fence, sa.and_(*of_group[:2]))
            .join(groups, sa.and_(*of_group[2:]))
            .join(runs, runs.c.run_id == driver.c.run_id)
            .where(driver.c.submission.is_not(None), driver.c.gone_at.is_(None), is_over)
            .order_by(driver.c.claimed_at.desc())
            .limit(most)
        )
        if run_ids is not None:
            query = query.where(driver.c.run_id.in_(run_ids))
        with reading(self.engine) as connection:
            return [
                LeftDriver(
                    GroupRef(row.run_id, row.group_name, row.incarnation),
                    known_as(submission_of(row.submission), submission_of(row.reported)),
                    bool(row.is_replaced),
                    row.claimed,
                    row.ended,
                )
                for row in connection.execute(query)
            ]

    def _set(self, ref: Claim | GroupRef, *only: sa.ColumnElement[bool], **values: object) -> int:
        with writing(self.engine) as connection:
            return connection.execute(sa.update(schema.driver).where(*_of(ref), *only).values(**values)).rowcount


def _of(ref: Claim | GroupRef) -> tuple[sa.ColumnElement[bool], ...]:
    table = schema.driver
    return table.c.run_id == ref.run_id, table.c.group_name == ref.group, table.c.incarnation == ref.incarnation


def submission_text(submission: Submission | None) -> str | None:
    """As the columns have it."""
    return None if submission is None else msgspec.json.encode(submission).decode()


def submission_of(text: str | None) -> Submission | None:
    """What `submission_text` has written; None also for what cannot be read: it is for finding a driver, and proves
    nothing."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Submission)
    except msgspec.MsgspecError:
        return None


def was_accepted(text: str | None) -> bool:
    """Whether a manager has taken what was submitted. A submission that was refused for now is no driver that was taken."""
    found = submission_of(text)
    return found is None or bool(found.id)


def said_of(text: str | None) -> ManagerSaid | None:
    """What `note_said` has written; None also for what cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(text, type=ManagerSaid)
    except msgspec.MsgspecError:
        return None
