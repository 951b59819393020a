"""Actions on a run from the page: stop, drain, scale, retry, give up, compute again. POSTs of JSON, each noted first.

The functions of the commands carry them out. People who may change the runs of a DAG in Airflow may act on them here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Depends, FastAPI, HTTPException

from airflow_logio.commands import with_log
from airflow_logio.errors import ConfigurationError, Fenced, NotPermitted, ProtocolViolation, ReplicaBusy, UnknownRun
from airflow_logio.protocol.replicas import MAX_REPLICAS
from airflow_logio.protocol.states import ALIVE
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run
from airflow_logio.store.rules.allowed_rules import check_allowed
from airflow_logio.supervision.presence import last_look, missing
from airflow_logio.supervision.scaling import asked_for
from airflow_logio.supervision.stop_run import States, StopMode, StopRun, await_stop, give_up, not_ended, shown
from airflow_logio.ui.access import Access, Posted, Text, decoded, posted_after
from airflow_logio.ui.looks import LogSource, RunLook

STOP_SECONDS = 5.0
"""How long a stop is watched. The request stands, so a person who looks at the run sees its end."""
GIVE_UP_SECONDS = 10.0


class Retrying(NamedTuple):
    """How groups are launched again: by Airflow's workers, or on this machine."""

    call: Callable[[LogStore, Run, str | None], str]
    """One group of a run, or all that can be (None). Returns what is said of it; raises `LogioError`."""
    told: str
    """What will happen, for the person that confirms it."""
    puts_back: bool = True
    """Whether Input Sets in quarantine are put back, too."""


class ActionResult(NamedTuple):
    """What came of an action."""

    said: str
    warning: str | None = None


class RunActions:
    """Actions on the runs of one log. Each raises `UnknownRun` for a group that the run does not have, a
    `LogioError` with the commands' sentence where it is refused, and `LogUnavailable`.
    """

    def __init__(self, retrying: Retrying) -> None:
        self.retrying = retrying

    def stop(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        """Halt it, and watch that for a few seconds: groups without a driver are marked halted."""
        _check_group(run, group)
        stopping = StopRun(store, run, StopMode.HALT, group)
        states = await_stop(stopping, STOP_SECONDS)
        return ActionResult(shown(states) if stopping.is_over(states) else not_ended(states, STOP_SECONDS))

    def drain(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        """Ask for a drain, which takes as long as it takes; the supervisor of the run sees to it."""
        _check_group(run, group)
        states: States = await_stop(StopRun(store, run, StopMode.DRAIN, group), 0.0)
        said = f"asked to drain; now: {shown(states)}" if states else not_ended(states, 0.0)
        return ActionResult(said, self._unsupervised(store, run))

    def scale(self, store: LogStore, run: Run, group: str, replicas: int, *, by: str, reason: str) -> ActionResult:
        """Ask for a number of replicas, which the supervisor of the run carries out."""
        _check_group(run, group)
        request = store.request_scaling(run.run_id, group, replicas, by=by, reason=reason)
        return ActionResult(asked_for(request), self._unsupervised(store, run))

    def retry(self, store: LogStore, run: Run, group: str | None) -> ActionResult:
        _check_group(run, group)
        return ActionResult(self.retrying.call(store, run, group))

    def give_up(self, store: LogStore, run: Run) -> ActionResult:
        return ActionResult(give_up(store, run, GIVE_UP_SECONDS))

    def again(
        self, store: LogStore, run: Run, because: str, allowed: Collection[Allowed] = (), *, only_stopped: bool = False
    ) -> ActionResult:
        """Give it up, so that its day or hour is computed again, and say how that begins. As `logio again`; the next run of
        its partition is `allowed` that. With `only_stopped`, one whose drivers are alive is left alone, and refused."""
        if run.partition is None:
            raise ProtocolViolation(
                f"run {run.spec.key} is of no day or hour, so nothing says which one the next run is for: give it up, and "
                "begin a run as ever"
            )
        try:
            check_allowed(run.spec, allowed)
        except ConfigurationError as error:
            raise ProtocolViolation(str(error)) from error
        if only_stopped and any(status.state in ALIVE for status in store.groups(run.run_id)):
            raise ProtocolViolation(f"the run of {run.partition}, uid {run.uid[:8]}, is at work: it was left alone")
        return ActionResult(give_up(store, run, GIVE_UP_SECONDS, because=because or None, allowed=allowed))

    def _unsupervised(self, store: LogStore, run: Run) -> str | None:
        return missing(run, last_look(store.supervisors(), run))


def _check_group(run: Run, group: str | None) -> None:
    known: Sequence[str] = [*run.spec.groups, *run.spec.replicated]
    if group is not None and group not in known:
        raise UnknownRun("the run has no such group")


# --- routes -----------------------------------------------------------------------------------------------------------


class OfGroup(Posted, frozen=True):
    """A group of the run; None for all of them."""

    group: Text | None = None


class ReplicasWanted(Posted, frozen=True):
    group: Text
    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)]
    reason: Text = ""


class OfRun(Posted, frozen=True):
    pass


class Again(Posted, frozen=True):
    """Why a partition is computed again: kept with the run that is replaced."""

    because: Text = ""
    allowed: list[Allowed] | None = None
    """What the next run of the partition may do, and no later one."""
    only_stopped: bool | None = None
    """Of many days: those that are at work are left alone."""


class ActionRoutes:
    """`source` is the log that is changed: it may be opened with another role than the one that is read.

    `readable` finds a run that a person may see, and raises for others.
    """

    def __init__(
        self, source: LogSource, access: Access, actions: RunActions, readable: Callable[[str, Any], RunLook]
    ) -> None:
        self._source = source
        self._access = access
        self._actions = actions
        self._readable = readable

    def add_to(self, app: FastAPI) -> None:
        user = Depends(self._access.user)
        given = Depends(posted_after(self._access.user))

        @app.post("/api/runs/{uid}/stop")
        def stop(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            return self._done(
                "stop", uid, who, raw, OfGroup, lambda log, run, it: self._actions.stop(log, run, it.group)
            )

        @app.post("/api/runs/{uid}/drain")
        def drain(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            return self._done(
                "drain", uid, who, raw, OfGroup, lambda log, run, it: self._actions.drain(log, run, it.group)
            )

        @app.post("/api/runs/{uid}/retry")
        def retry(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            look = self._readable(uid, who)
            if not self._access.may_retry(who, look.dag_id):
                raise HTTPException(403, "you may not clear the tasks of this DAG's runs")
            return self._done(
                "retry", uid, who, raw, OfGroup, lambda log, run, it: self._actions.retry(log, run, it.group)
            )

        @app.post("/api/runs/{uid}/scale")
        def scale(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            def act(log: LogStore, run: Run, it: ReplicasWanted) -> ActionResult:
                by = f"{self._access.name_of(who)}, on the page"
                return self._actions.scale(log, run, it.group, it.replicas, by=by, reason=it.reason)

            return self._done("scale", uid, who, raw, ReplicasWanted, act)

        @app.post("/api/runs/{uid}/give_up")
        def give_up(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            return self._done("give_up", uid, who, raw, OfRun, lambda log, run, _: self._actions.give_up(log, run))

        @app.post("/api/runs/{uid}/again")
        def again(uid: str, who: Any = user, raw: bytes = given) -> dict[str, Any]:
            def act(log: LogStore, run: Run, it: Again) -> ActionResult:
                return self._actions.again(log, run, it.because, it.allowed or (), only_stopped=bool(it.only_stopped))

            return self._done("again", uid, who, raw, Again, act)

    def _done(
        self,
        action: str,
        uid: str,
        who: Any,
        raw: bytes,
        kind: type[Any],
        act: Callable[[LogStore, Run, Any], ActionResult],
    ) -> dict[str, Any]:
        """Find the run, check the right, note the person, act. An action that cannot be noted is not done."""
        look = self._readable(uid, who)
        if not self._access.may_change(who, look.dag_id):
            raise HTTPException(403, "you may not change the runs of this DAG")
        it = decoded(raw, kind)
        with self._source.asking() as log:
            seen = log.store.sight([uid])
            if not seen:
                raise UnknownRun("no such run is in the log that is changed")
            self._access.note(who, look.report.run.spec.key, action, {"uid": uid, **it.told()})
            with _refused(look.report.log):
                outcome = act(log.store, seen[0].run, it)
        told = look.report.log
        return {"said": with_log(outcome.said, told), "warning": outcome.warning and with_log(outcome.warning, told)}


@contextmanager
def _refused(log: str | None) -> Iterator[None]:
    """409 for what the rules of the protocol refuse, with the sentence that the commands say. What is wrong with the log is
    said as for a look (`Refusals`): it names hosts and roles."""
    try:
        yield
    except (ProtocolViolation, ReplicaBusy, Fenced) as error:
        raise HTTPException(409, with_log(str(error), log)) from error
    except NotPermitted as error:
        raise HTTPException(
            409,
            "the log refuses it: the role with which the page opens the log may not write. Option `[logio] "
            "page_action_conn_id` names a connection that may",
        ) from error
