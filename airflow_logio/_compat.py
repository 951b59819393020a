"""The parts of Airflow that we use and that are not public: one place to fix when Airflow moves them."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import psutil
from airflow.plugins_manager import AirflowPlugin
from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf
from airflow.sdk.bases.operator import DEFAULT_POOL_NAME, DEFAULT_QUEUE
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_logio.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_logio.store.records.driver_records import KilledTask

log = logging.getLogger(__name__)

__all__ = [
    "AirflowPlugin",
    "BaseOperatorLink",
    "BaseTrigger",
    "RecoverInTriggerer",
    "TaskSuccessEvent",
    "TriggerEvent",
    "active_tasks",
    "aget_task_state",
    "audit",
    "begun_tasks",
    "create_dag_run",
    "default_deferrable",
    "failed_starts",
    "get_task_state",
    "has_own_place",
    "is_dag_run_running",
    "is_from_mapped",
    "is_in_mapped_group",
    "is_paused",
    "kerberos_principal",
    "kubernetes_conn_id",
    "launches_group",
    "may_be_triggered_by_tasks",
    "may_change_runs",
    "may_end_in_triggerer",
    "may_give_partition_keys",
    "may_read_data",
    "may_read_runs",
    "may_read_task_logs",
    "note_waiting",
    "page_action_conn_id",
    "page_conn_id",
    "page_path",
    "pods_end_with_their_task",
    "poll_interval",
    "readable_dags",
    "recover_in_triggerer",
    "spark_history_url",
    "stats",
    "store_link",
    "stored_link",
    "user_dependency",
    "waiting_starts",
    "work_dir",
]

_ENDING_EXECUTORS = ("KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor")


def poll_interval() -> float:
    """Option ``[logio] poll_interval``."""
    return float(conf.getfloat("logio", "poll_interval", fallback=1.0))


def work_dir() -> Path:
    """Option ``[logio] work_dir``; the folder ``logio`` of AIRFLOW_HOME if it is empty."""
    configured = conf.get("logio", "work_dir", fallback="")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "logio"


class RecoverInTriggerer(StrEnum):
    """Option ``[logio] recover_in_triggerer``: which drivers the triggerer launches again by itself."""

    AUTO = "auto"
    """Those that ran beside it: on its machine, in its control group, as its user, in its environment."""
    ALWAYS = "always"
    """All but those that have a place of their own: they run on the machine of the triggerer from then on."""
    NEVER = "never"


def recover_in_triggerer() -> RecoverInTriggerer:
    """As this process is configured. Raises `ConfigurationError` for another word."""
    said = str(conf.get("logio", "recover_in_triggerer", fallback="") or RecoverInTriggerer.AUTO).strip().lower()
    try:
        return RecoverInTriggerer(said)
    except ValueError:
        raise ConfigurationError(
            f"[logio] recover_in_triggerer is {said!r}; it is one of {', '.join(RecoverInTriggerer)}"
        ) from None


def spark_history_url() -> str:
    """Option ``[logio] spark_history_url``; empty if there is no history server."""
    return str(conf.get("logio", "spark_history_url", fallback="") or "")


def kubernetes_conn_id() -> str:
    """Option ``[logio] kubernetes_conn_id``; empty if credentials are those of the environment."""
    return str(conf.get("logio", "kubernetes_conn_id", fallback="") or "")


def may_end_in_triggerer(task: Any) -> bool:
    """Whether a task that succeeds needs no worker for it: no asset, callback or hook of the task, no listener (OpenLineage),
    and no XCom that another place than Airflow's own database keeps."""
    from airflow.providers.common.compat.sdk import BaseOperator
    from airflow.sdk.listener import get_listener_manager

    needs_worker = (
        task.outlets,
        task.on_success_callback,
        task._post_execute_hook,
        type(task).post_execute is not BaseOperator.post_execute,
        not task.do_xcom_push,
        task.multiple_outputs,
        not conf.get("core", "xcom_backend", fallback="").endswith(".BaseXCom"),
    )
    return not any(needs_worker) and not get_listener_manager().has_listeners


def default_deferrable() -> bool:
    """Option ``[operators] default_deferrable`` where the environment sets it; True otherwise (ADR-67).

    Airflow writes its own default, False, into each airflow.cfg that it generates: in that file it is no choice of a person.
    """
    name = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
    if not any(name + suffix in os.environ for suffix in ("", "_CMD", "_SECRET")):
        return True
    return bool(conf.getboolean("operators", "default_deferrable", fallback=True))


_NO_PLACE: Mapping[str, Any] = {
    "queue": DEFAULT_QUEUE,
    "pool": DEFAULT_POOL_NAME,
    "executor": None,
    "executor_config": {},
}


def has_own_place(given: Mapping[str, Any], *, is_mapped: bool) -> bool:
    """Whether the author of a task has said where it runs: a queue, a pool, an executor, or what is for an executor.

    `given` are the arguments of the operator, with its ``default_args``. What these say holds for every task, that of the
    supervisor included: it is no place of one task's own. Airflow has put them among the arguments of a mapped task.
    """
    usual = given.get("default_args") or {} if is_mapped else {}
    return any(given.get(name) not in (None, none, usual.get(name)) for name, none in _NO_PLACE.items())


def is_from_mapped(task: Any) -> bool:
    """Whether an operator is being made as one instance of a mapped task."""
    return bool(getattr(task, "_BaseOperator__from_mapped", False))


def is_in_mapped_group(task: Any) -> bool:
    """Whether a task group around the task is expanded, for code that parses a DAG."""
    return task.get_closest_mapped_task_group() is not None


def kerberos_principal(given: str | None) -> str:
    """The principal of a ticket cache: the one that is given, or option ``[kerberos] principal``."""
    from airflow.security.kerberos import get_kerberos_principal

    return str(get_kerberos_principal(given))


def pods_end_with_their_task(executor: str | None) -> str | None:
    """The name of the executor if what a task starts ends with the task; `executor` is the task's own, if it has one.

    A pod of the Kubernetes executor is configured with another executor inside; an environment variable identifies it.
    If each team has an executor of its own, the process that runs the task tells which one it is.
    """
    if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
        return "KubernetesExecutor"
    possible = _executors(executor.strip() if executor else None)
    ending = [name for name in possible if name in _ENDING_EXECUTORS]
    if ending and (len(ending) == len(possible) or _machine_has_one_task()):
        return ending[0]
    return None


def _executors(named: str | None) -> list[str]:
    """Class names of the executors that a task may have: the default of each team, or those that the task's own name means.

    As Airflow writes them: ``LocalExecutor,ecs:path.of.AwsEcsExecutor;team=CeleryExecutor``.
    """
    found = []
    for part in conf.get("core", "executor", fallback="").split(";"):
        configured = [one.strip() for one in part.rpartition("=")[2].split(",") if one.strip()]
        for number, one in enumerate(configured):
            alias, _, path = one.rpartition(":")
            names = (one, alias, path, path.rpartition(".")[2])
            if (named is None and number == 0) or (named is not None and named in names):
                found.append(path.rpartition(".")[2])
    if found or named is None:
        return found
    return [named.rpartition(":")[2].rpartition(".")[2]]


def _machine_has_one_task() -> bool:
    """Whether a program above this one was started for one task only, as executors do whose machines end with the task."""
    commands = []
    for process in psutil.Process().parents():
        with suppress(psutil.Error):
            commands.append(" ".join(process.cmdline()))
    return any("execution_time.execute_workload" in command for command in commands)


_asking = ThreadPoolExecutor(1, thread_name_prefix="logio asks Airflow")
"""Airflow answers one question at a time, the first one late. Those that wait must not fill the event loop's own executor:
Airflow's logging needs it, and so do other triggers."""


async def aget_task_state(task_instance: Any) -> str | None:
    """State of a task instance as the scheduler has it, for code in the triggerer; ``removed`` if it is gone.

    None means no state: a cleared task that waits for its next attempt.
    """
    names = (task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index)
    return await asyncio.get_running_loop().run_in_executor(_asking, _ask_for_state, *names)


def get_task_state(task: KilledTask) -> str | None:
    """As `aget_task_state`, for code in a task. Raises whatever Airflow raises."""
    return _ask_for_state(task.dag_id, task.dag_run_id, task.task_id, task.map_index)


_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


_OF_GROUP_TASKS = {"group", "run_uid", "connections"}
"""Template fields of `LogioSparkOperator`; the others that name a group have no connections of a pipeline."""


def launches_group(task: Any) -> bool:
    """Whether a task of a DAG, mapped or not, launches drivers of a group."""
    return set(task.template_fields) >= _OF_GROUP_TASKS


_TO_COME = frozenset({None, "scheduled", "queued", "restarting", "up_for_retry", "up_for_reschedule"})
"""States of a task that Airflow is to begin: since it was made or cleared, or for another try. One that was cleared while
it ran is restarting, then up for retry."""


def _states(dag_id: str, run_id: str, task_ids: Collection[str]) -> dict[str, str | None]:
    """State of each of these tasks of a DAG run, and of each instance of those that are mapped. None: no state yet."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=sorted(task_ids), run_ids=[run_id])
    return {name: getattr(state, "value", state) for name, state in sorted(found.get(run_id, {}).items())}


def begun_tasks(dag_id: str, run_id: str, task_ids: Collection[str]) -> list[str]:
    """The tasks among these of a DAG run that Airflow is not to begin any more, each with its state, for code in a task:
    they have begun, or ended, and were not cleared since. Not those that its DAG has no more. Raises whatever Airflow raises.
    """
    states = _states(dag_id, run_id, task_ids)
    return [f"{name} ({state})" for name, state in states.items() if state not in _TO_COME | {"removed"}]


def active_tasks(dag_id: str, run_id: str, task_ids: Collection[str]) -> list[str] | None:
    """The tasks among these of a DAG run that have not ended, each with its state, for code in a task.

    None if Airflow does not say, which is logged with its cause. Raises ImportError, AttributeError or TypeError if this
    Airflow cannot be asked: another question would find the same.
    """
    try:
        states = _states(dag_id, run_id, task_ids)
    except (ImportError, AttributeError, TypeError):
        raise
    except Exception as error:
        log.warning(
            "Airflow does not say which tasks of run %s are active: %s: %s", run_id, type(error).__name__, error
        )
        return None
    return [f"{name} ({state or 'no state yet'})" for name, state in states.items() if state not in _OVER]


BY_TASKS = "operator_triggered"
"""The type of DAG runs that a task of a DAG makes."""


def may_be_triggered_by_tasks(dag: Any) -> bool:
    """Whether a DAG allows DAG runs that tasks make, for code that parses it."""
    allowed = getattr(dag, "allowed_run_types", None)
    return allowed is None or BY_TASKS in {str(getattr(one, "value", one)) for one in allowed}


def create_dag_run(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> bool:
    """Create a DAG run, for code in a task; False if there is one of that name: Airflow makes no second one, whatever is
    repeated. It has no partition key, as Airflow's client does not hand that over (3.3).

    Raises `ConfigurationError` with the cause if Airflow refuses.
    """
    from airflow.sdk.api.client import ServerResponseError
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    try:
        found = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=dict(conf)))
    except AirflowRuntimeError as error:
        found = error.error
    except ServerResponseError as error:  # of `dag.test()`, where no supervisor stands between
        found = ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"detail": error.detail})
    if not isinstance(found, ErrorResponse):
        return True
    if found.error is ErrorType.DAGRUN_ALREADY_EXISTS:
        return False
    said = f"Airflow does not create DAG run {run_id!r} of DAG {dag_id!r}: {found.error.value}: {found.detail}"
    if "denied_run_type" in str(found.detail):
        said += f". Add {BY_TASKS!r} to allowed_run_types of the DAG"
    raise ConfigurationError(said)


def is_dag_run_running(dag_id: str, run_id: str) -> bool:
    """Whether a DAG run is running, for code in a task; False also if it is queued, or was deleted. Raises what Airflow
    raises if it does not answer."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return bool(RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["running"]))


def may_give_partition_keys() -> bool:
    """Whether a task says which partition an asset event is about. Below Airflow 3.3, each has the key of the DAG run."""
    from airflow.sdk.execution_time.context import OutletEventAccessor

    return hasattr(OutletEventAccessor, "add_partitions")


@cache
def stats() -> Any:
    """Airflow's metrics, as configured. What providers see of them, Airflow 3.2 configures in tasks, not in triggerers."""
    from airflow.providers.common.compat.sdk import Stats

    if getattr(Stats, "factory", "not a class since 3.3") is None:
        from airflow.sdk.observability.metrics import stats_utils

        Stats.initialize(factory=stats_utils.get_stats_factory(Stats))
    return Stats


_linking = ThreadPoolExecutor(1, thread_name_prefix="logio stores links")
"""Links must not delay the answer to what became of a task."""


def store_link(task_instance: Any, key: str, link: str) -> Future[None]:
    """Store what an operator's link leads to, before the segment of its task ends.

    As Airflow stores it then: an XCom, past the backend that a deployment may have for XComs. The web server asks no
    backend for it.
    """
    return _linking.submit(
        XCom._set_xcom_in_db,
        key=key,
        value=link,
        dag_id=task_instance.dag_id,
        task_id=task_instance.task_id,
        run_id=task_instance.run_id,
        map_index=task_instance.map_index,
    )


WAITING_FOR = "waiting_for"
MOST_WAITING = 50
"""XCom of a task that waits for the input of its run: what it waits for, in words. It is out of date when the task is not
deferred any more."""
NOTE_SECONDS = 10.0


def note_waiting(task_instance: Any, said: str) -> None:
    """Store what a task waits for, for the page; for code in the task. The wait does not depend on it."""
    try:
        store_link(task_instance, WAITING_FOR, said).result(NOTE_SECONDS)
    except Exception as error:
        log.warning("Airflow does not store what the task waits for: %s: %s", type(error).__name__, error)


def stored_link(task_instance: Any, key: str) -> str:
    """What was stored for an operator's link, for code in the task; empty if nothing was."""
    found = XCom._get_xcom_db_ref(
        key=key,
        dag_id=task_instance.dag_id,
        task_id=task_instance.task_id,
        run_id=task_instance.run_id,
        map_index=task_instance.map_index,
    )
    return str(found.value or "")


def _ask_for_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    mapped = map_index if map_index >= 0 else None
    found = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=mapped)
    states = found.get(run_id, {})
    key = task_id if mapped is None else f"{task_id}_{mapped}"
    if key not in states:
        return "removed"
    return None if states[key] is None else str(getattr(states[key], "value", states[key]))


# --- the API server: what is imported here is loaded there only -------------------------------------------------------


def page_conn_id() -> str:
    """Option ``[logio] page_conn_id``: the connection of the log that the page reads."""
    return str(conf.get("logio", "page_conn_id", fallback="") or "logio_default")


def page_action_conn_id() -> str:
    """Option ``[logio] page_action_conn_id``: the connection of the log with which the page changes runs."""
    return str(conf.get("logio", "page_action_conn_id", fallback="") or page_conn_id())


def page_path() -> str:
    """The path below which Airflow's own page is, without a slash at its end; empty where it is at the root.

    Airflow 3.2 loads the bundle of a page from where its own script is, later versions from its page.
    """
    return urlsplit(str(conf.get("api", "base_url", fallback="") or "")).path.rstrip("/")


PAGE_NEEDS: Mapping[str, Collection[str]] = {
    "airflow.api_fastapi.core_api.security": ("get_user",),
    "airflow.api_fastapi.app": ("get_auth_manager",),
    "airflow.api_fastapi.auth.managers.models.resource_details": ("DagAccessEntity", "DagDetails"),
    "airflow.models": ("DagRun", "Log"),
    "airflow.models.dag": ("DagModel",),
    "airflow.models.dagbag": ("DBDagBag",),
    "airflow.models.taskinstance": ("TaskInstance", "clear_task_instances", "find_relevant_relatives"),
    "airflow.models.xcom": ("XComModel",),
    "airflow.utils.session": ("create_session",),
    "airflow.utils.state": ("State", "TaskInstanceState"),
}
"""What the functions below, and `ui.group_tasks`, import when they are called."""


def check_page() -> None:
    """Raises ImportError if Airflow has moved what the page needs: then there is none, rather than one that fails."""
    for module, names in PAGE_NEEDS.items():
        found = importlib.import_module(module)
        if missing := [name for name in names if not hasattr(found, name)]:
            raise ImportError(f"{module} of this Airflow has no {' and no '.join(missing)}")


def user_dependency() -> Any:
    """FastAPI's dependency for a route: the user who asks, by token or cookie, or else HTTP 401."""
    from airflow.api_fastapi.core_api.security import get_user

    return get_user


def is_paused(dag_id: str) -> bool:
    """Whether a DAG is paused: then Airflow starts none of its tasks. False for a DAG that Airflow does not know."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag = session.get(DagModel, dag_id)
        return dag is not None and bool(dag.is_paused)


SUPERVISOR_TASK, START_TASK = "LogioSuperviseOperator", "LogioStartRunOperator"
"""The classes of ``supervise`` and ``notify``, and of ``start_run``, as Airflow has stored them."""


def failed_starts(dag_id: str, dag_run_id: str) -> list[str]:
    """The tasks of a DAG run that were to start a run of a pipeline, and have failed, for now or for good."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    failed = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
    with create_session() as session:
        query = select(TaskInstance.task_id).where(
            TaskInstance.dag_id == dag_id,
            TaskInstance.run_id == dag_run_id,
            TaskInstance.operator == START_TASK,
            TaskInstance.state.in_(failed),
        )
        return sorted(session.scalars(query))


class WaitingStart(NamedTuple):
    """A task that waits, deferred, for the input of the run that it is to begin."""

    dag_id: str
    dag_run_id: str
    task_id: str
    said: str
    """What it waits for, since when, and until when."""


def waiting_starts(dag_ids: Collection[str] | None, dag_run_id: str | None = None) -> list[WaitingStart]:
    """Those of some DAGs, or of all (None), or of one DAG run of them: at most `MOST_WAITING`, by name."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import and_, select

    names = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
    same = zip(names, (XComModel.dag_id, XComModel.run_id, XComModel.task_id), strict=True)
    where = [
        TaskInstance.state == TaskInstanceState.DEFERRED,
        TaskInstance.operator == START_TASK,
        XComModel.key == WAITING_FOR,
        XComModel.map_index == TaskInstance.map_index,
    ]
    where += [] if dag_ids is None else [TaskInstance.dag_id.in_(list(dag_ids))]
    where += [] if dag_run_id is None else [TaskInstance.run_id == dag_run_id]
    query = select(XComModel).join(TaskInstance, and_(*(one == other for one, other in same))).where(*where)
    with create_session() as session:
        found = session.scalars(query.order_by(*names).limit(MOST_WAITING)).all()
        return [
            WaitingStart(one.dag_id, one.run_id, one.task_id, str(XComModel.deserialize_value(one))) for one in found
        ]


def may_read_runs(user: Any, dag_id: str) -> bool:
    """Whether the user may see the runs of a DAG."""
    return _may(user, dag_id, _team_of(dag_id), "RUN")


def may_read_task_logs(user: Any, dag_id: str) -> bool:
    """Whether the user may see what the tasks of a DAG have printed."""
    return _may(user, dag_id, _team_of(dag_id), "TASK_LOGS")


def may_read_data(user: Any, dag_id: str) -> bool:
    """Whether the user may see the data of a DAG: Airflow asks the same right for what its tasks hand to each other."""
    return _may(user, dag_id, _team_of(dag_id), "XCOM")


def may_change_runs(user: Any, dag_id: str) -> bool:
    """Whether the user may change the runs of a DAG."""
    return _may(user, dag_id, _team_of(dag_id), "RUN", "PUT")


def may_clear_tasks(user: Any, dag_id: str) -> bool:
    """Whether the user may clear tasks of a DAG's runs."""
    return _may(user, dag_id, _team_of(dag_id), "TASK_INSTANCE", "PUT")


def _team_of(dag_id: str) -> str | None:
    from airflow.models.dag import DagModel

    team: str | None = DagModel.get_team_name(dag_id)
    return team


def _may(user: Any, dag_id: str, team: str | None, entity: str, method: Literal["GET", "PUT"] = "GET") -> bool:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails

    details = DagDetails(id=dag_id, team_name=team)
    return bool(
        get_auth_manager().is_authorized_dag(
            method=method, access_entity=DagAccessEntity[entity], details=details, user=user
        )
    )


def readable_dags(user: Any) -> set[str]:
    """The DAGs whose runs the user may see: some see a DAG and none of its runs."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.models.dag import DagModel

    seen = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    teams = DagModel.get_dag_id_to_team_name_mapping(list(seen))
    return {dag_id for dag_id in seen if _may(user, dag_id, teams.get(dag_id), "RUN")}


def audit(user: Any, event: str, dag_id: str, dag_run_id: str, extra: Mapping[str, Any]) -> None:
    """Write into Airflow's audit log, as its own API does (`action_logging`): who asks for what, before it is done."""
    from airflow.models import Log
    from airflow.utils.session import create_session

    name = user.get_name()
    with create_session() as session:
        session.add(
            Log(
                event=event,
                owner=name,
                owner_display_name=name,
                extra=json.dumps({**extra, "method": "POST"}),
                dag_id=dag_id,
                run_id=dag_run_id,
            )
        )
