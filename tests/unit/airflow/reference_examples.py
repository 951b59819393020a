"""The examples of docs/reference.md: each operator, sensor and trigger, with each of its arguments at least once.

`.ci/reference` quotes them, and refuses a part in which an argument of its class is missing.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.compat.sdk import DAG

from airflow_logio.asset_uris import create_asset
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators.assets import LogioAssetsOperator
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.operators.lookback import LogioLookbackOperator
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.scaling_controller import LogioScalingController
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.ready_dags import (
    build_assets_dag,
    build_controller_dag,
    build_due_dag,
    build_fresh_dag,
    build_recovery_dag,
)
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor
from airflow_logio.supervision.policies import DS2, Threshold
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.input_arrival import LogioInputTrigger
from airflow_logio.triggers.recovered_group import LogioRecoveredGroupTrigger
from airflow_logio.triggers.scale import LogioScaleTrigger
from airflow_logio.triggers.stop import LogioStopTrigger

UID = "6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90"

with DAG("reference_group", schedule=None, params={"transactions": "/data/transactions.parquet"}) as group_dag:
    # [START LogioPipelineGroup]
    LogioPipelineGroup(
        "pipelines.sales:sales",
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"warehouse": "warehouse_db"},
        params={"transactions": "{{ params.transactions }}"},
        spark={"driver_memory": "1g"},
        groups={"hourly": {"driver_memory": "2g"}},
        replay_seconds=600,
        lease_seconds=10,
        launch_seconds=180,
        recovery_budget=RecoveryBudget(recoveries=10, window_seconds=3600),
        recovery="supervise",
        concurrent_runs="derived",
        on_recovery_callback=print,
        on_parked_callback=print,
        on_halted_callback=print,
        on_quarantine_callback=print,
        on_queued_callback=print,
        on_scaling_callback=print,
        on_budget_callback=[print],
        assets={"publish": "logio://warehouse_db/hourly_sales", "save_totals": "logio://warehouse_db/item_totals"},
        assets_with_quarantine=False,
        lookback=0,  # 1 for a pipeline with a partition: the day before is computed again as well
        group_id="sales",
    )
    # [END LogioPipelineGroup]

with DAG("reference_tasks", schedule=None, params={"transactions": "/data/transactions.parquet"}) as task_dag:
    # [START LogioStartRunOperator]
    start = LogioStartRunOperator(
        task_id="start_run",
        pipeline="pipelines.sales:sales",
        connections={"warehouse": "warehouse_db"},
        pipeline_params={"transactions": "{{ params.transactions }}"},
        recovery="supervise",
        concurrent_runs="derived",
        logio_conn_id="logio_default",
        replay_seconds=600,
        lease_seconds=10,
        launch_seconds=180,
        recovery_budget=RecoveryBudget(recoveries=10, window_seconds=3600),
    )
    # [END LogioStartRunOperator]
    # [START LogioSparkOperator]
    hourly = LogioSparkOperator(
        task_id="hourly",
        pipeline="pipelines.sales:sales",
        group="hourly",
        run_uid=start.output,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"warehouse": "warehouse_db"},
        queue="large",
        own_place=True,
        deferrable=True,
        poll_interval=1.0,
        name="sales_{{ ds }}",
        conf={"spark.sql.shuffle.partitions": "8"},
        packages="org.apache.spark:spark-avro_2.13:4.2.0",
        exclude_packages="org.slf4j:slf4j-api",
        repositories="https://repository.example.com/maven",
        jars="/opt/jars/formats.jar",
        files="/etc/sales/stores.csv",
        archives="/opt/archives/models.zip",
        py_files="/opt/code/rules.zip",
        driver_class_path="/opt/jars/metrics.jar",
        driver_memory="2g",
        executor_memory="4g",
        executor_cores=2,
        total_executor_cores=8,
        properties_file="/etc/spark/sales.conf",
        env_vars={"TZ": "UTC"},
        verbose=False,
        spark_binary="spark-submit",
        openlineage_inject_parent_job_info=True,
        openlineage_inject_transport_info=False,
    )
    # The second replica of a replicated group, wherever a slot of this pool is free:
    second = LogioSparkOperator(
        task_id="hourly_2",
        pipeline="pipelines.sales_scaled:sales_scaled",
        group="hourly",
        replica=2,
        run_uid=start.output,
        pool="spark_drivers",
    )
    # On YARN, as a Kerberos principal:
    publish = LogioSparkOperator(
        task_id="publish",
        pipeline="pipelines.sales:sales",
        run_uid=start.output,
        conn_id="yarn_default",
        status_poll_interval=5.0,
        deploy_mode="client",
        num_executors=4,
        yarn_queue="nightly",
        keytab="/etc/security/sales.keytab",
        principal="sales@EXAMPLE.COM",
        use_krb5ccache=False,
    )
    totals = LogioSparkOperator(
        task_id="totals", pipeline="pipelines.sales:sales", run_uid=start.output, proxy_user="sales"
    )
    # On nodes of Kubernetes, with the credentials of a connection; the queue says where it is submitted:
    in_pods = LogioSparkOperator(
        task_id="in_pods",
        pipeline="pipelines.sales:sales",
        group="hourly",
        run_uid=start.output,
        conn_id="spark_kubernetes",
        deploy_mode="cluster",
        kubernetes_conn_id="kubernetes_default",
        conf={"spark.kubernetes.container.image": "registry.example.com/sales:1"},
        queue="large",
    )
    # As a client of a Spark Connect server, which the groups of the run share:
    shared = LogioSparkOperator(
        task_id="shared", pipeline="pipelines.sales:sales", group="hourly", run_uid=start.output, connect=True
    )
    # [END LogioSparkOperator]
    # [START LogioSuperviseOperator]
    supervise = LogioSuperviseOperator(
        task_id="supervise",
        pipeline="pipelines.sales:sales",
        run_uid=start.output,
        logio_conn_id="logio_default",
        poll_interval=1.0,
        on_recovery_callback=print,
        on_parked_callback=print,
        on_halted_callback=print,
        on_quarantine_callback=print,
        on_queued_callback=print,
        on_scaling_callback=print,
        on_budget_callback=[print],
        recover=True,
        deferrable=True,
        trigger_rule="one_success",
    )
    # [END LogioSuperviseOperator]
    # [START LogioFinishRunOperator]
    finish = LogioFinishRunOperator(
        task_id="finish_run",
        pipeline="pipelines.sales:sales",
        run_uid=start.output,
        logio_conn_id="logio_default",
        fail_on_quarantine=True,
    )
    # [END LogioFinishRunOperator]
    # [START LogioAssetsOperator]
    tell = LogioAssetsOperator(
        task_id="assets",
        pipeline="pipelines.sales:sales",
        connections={"warehouse": "warehouse_db"},
        assets={"publish": "logio://warehouse_db/hourly_sales", "save_totals": "logio://warehouse_db/item_totals"},
        run_uid=start.output,
        logio_conn_id="logio_default",
        with_quarantine=False,
        while_running=False,
    )
    # [END LogioAssetsOperator]
    start >> [hourly, publish, totals] >> finish >> tell
    [start, hourly, publish, totals] >> supervise

with DAG("reference_days", schedule=None, params={"data": "/data"}) as days_dag:
    own = LogioStartRunOperator(
        task_id="start_run",
        pipeline="pipelines.clicks:clicks",
        connections={"lake": "lake_folder", "warehouse": "warehouse_db"},
    )
    # [START LogioLookbackOperator]
    look_back = LogioLookbackOperator(
        task_id="look_back",
        pipeline="pipelines.clicks:clicks",
        lookback=2,
        run_uid=own.output,
        with_dag_params=True,
        logio_conn_id="logio_default",
    )
    # [END LogioLookbackOperator]

with DAG("reference_control", schedule=None, params={"run": UID}) as control_dag:
    # [START LogioStopOperator]
    drain = LogioStopOperator(
        task_id="drain",
        pipeline="pipelines.sales:sales",
        external_dag_id="logio_sales",
        external_dag_run_id="{{ dag_run.conf['dag_run_id'] }}",
        group="ingest",
        mode="drain",
        logio_conn_id="logio_default",
        deferrable=True,
        timeout=timedelta(hours=1),
        poll_interval=1.0,
    )
    # Or by the uid of the run:
    halt = LogioStopOperator(task_id="halt", run_uid="{{ params.run }}", mode="halt")
    # [END LogioStopOperator]
    # [START LogioScaleOperator]
    scale_up = LogioScaleOperator(
        task_id="scale_up",
        group="hourly",
        replicas=3,
        pipeline="pipelines.sales_scaled:sales_scaled",
        external_dag_id="logio_sales_scaled",
        external_dag_run_id="{{ dag_run.conf['dag_run_id'] }}",
        reason="the sale begins",
        logio_conn_id="logio_default",
        deferrable=True,
        timeout=timedelta(minutes=10),
        poll_interval=1.0,
    )
    # Or by the uid of the run:
    sleep = LogioScaleOperator(task_id="sleep", group="hourly", replicas=0, run_uid="{{ params.run }}")
    # [END LogioScaleOperator]
    # [START LogioScalingController]
    control = LogioScalingController(
        task_id="control",
        policy=Threshold(up_lag_seconds=10),
        pipeline="sales_scaled",
        run_uid="{{ params.run }}",
        group="hourly",
        logio_conn_id="logio_default",
        look_seconds=5.0,
        timeout=timedelta(minutes=10),
        deferrable=True,
    )
    # A person's number instead of the policy's:
    by_hand = LogioScalingController(
        task_id="by_hand", policy=Threshold(up_lag_seconds=10), group="hourly", replicas="{{ params.replicas }}"
    )
    # [END LogioScalingController]
    # [START LogioFreshRunOperator]
    give_up = LogioFreshRunOperator(
        task_id="give_up",
        run_uid="{{ params.run }}",
        logio_conn_id="logio_default",
        deferrable=True,
        timeout=timedelta(minutes=5),
        poll_interval=1.0,
    )
    # [END LogioFreshRunOperator]

with DAG("reference_recovery", schedule=None) as recovery_dag:
    # [START LogioFailedGroupSensor]
    failed = LogioFailedGroupSensor(
        task_id="failed_groups",
        run_uid="{{ dag_run.conf['run_uid'] }}",
        pipeline="sales",
        logio_conn_id="logio_default",
        poke_interval=1.0,
        give_up_after=timedelta(hours=6),
        deferrable=True,
    )
    # [END LogioFailedGroupSensor]
    # [START LogioRecoverGroupOperator]
    recover = LogioRecoverGroupOperator.partial(
        task_id="recover", logio_conn_id="logio_default", on_recovery_callback=print
    ).expand(finding=failed.output)
    # [END LogioRecoverGroupOperator]
    # [START LogioRecoveredGroupSensor]
    recovered = LogioRecoveredGroupSensor(
        task_id="recovered",
        recovery="{{ dag_run.conf }}",
        logio_conn_id="logio_default",
        poke_interval=1.0,
        deferrable=True,
    )
    # [END LogioRecoveredGroupSensor]

# [START LogioGroupTrigger]
group_trigger = LogioGroupTrigger(
    logio_conn_id="logio_default",
    run_uid="6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90",
    group="hourly",
    own_place=False,
    last_try=False,
    ends_task=True,
    waits_for_place=False,
    incarnations={"hourly": 2},
    relayed={"hourly": [2, 4096]},
    lineage=None,
    poll_interval=1.0,
)
# [END LogioGroupTrigger]
# [START LogioFailedGroupTrigger]
failed_trigger = LogioFailedGroupTrigger(
    logio_conn_id="logio_default",
    supervisor="DAG our_recovery, task failed_groups",
    pipeline="sales",
    run_uid="6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90",
    poll_interval=1.0,
    give_up_after=3600.0,
    rest_seconds=10.0,
    kinds=["parked", "budget"],
    seen={"parked": {"hourly": 2}},
    last_try=False,
    recovers=False,
    unanswered=[],
)
# [END LogioFailedGroupTrigger]
# [START LogioRecoveredGroupTrigger]
recovered_trigger = LogioRecoveredGroupTrigger(
    logio_conn_id="logio_default",
    run_uid="6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90",
    group="hourly",
    incarnation=2,
    last_try=False,
    poll_interval=1.0,
)
# [END LogioRecoveredGroupTrigger]
# [START LogioScaleTrigger]
scale_trigger = LogioScaleTrigger(
    logio_conn_id="logio_default",
    run_uid="6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90",
    group="hourly",
    request_id=3,
    last_try=False,
    poll_interval=1.0,
)
# [END LogioScaleTrigger]
# [START LogioInputTrigger]
input_trigger = LogioInputTrigger(
    places=[["path", "/data/dt=2026-03-01/_SUCCESS"]],
    machine=["worker-1", "8a1c0d3e", "50000"],
    since=1772409600.0,
    until=1772431200.0,
    last_try=False,
)
# [END LogioInputTrigger]
# [START LogioStopTrigger]
stop_trigger = LogioStopTrigger(
    logio_conn_id="logio_default",
    run_uid="6f1c0f3e5a7b4d0e9c2d8a1b3e5f7a90",
    mode="drain",
    group="ingest",
    last_try=False,
    poll_interval=1.0,
)
# [END LogioStopTrigger]
# [START build_recovery_dag]
ours = build_recovery_dag(
    "our_recovery",
    logio_conn_id="logio_default",
    pipeline="sales",
    give_up_after=timedelta(hours=1),
    on_recovery_callback=print,
)
# [END build_recovery_dag]
# [START build_controller_dag]
controller = build_controller_dag(
    "our_controller", policy=DS2(), pipeline="sales_scaled", look_seconds=5.0, logio_conn_id="logio_default"
)
# [END build_controller_dag]
# [START build_assets_dag]
assets = build_assets_dag(
    "pipelines.sales:sales",
    {"warehouse": "warehouse_db"},
    dag_id="our_assets",
    logio_conn_id="logio_default",
    assets={"publish": "logio://warehouse_db/hourly_sales", "save_totals": "logio://warehouse_db/item_totals"},
    schedule="*/5 * * * *",
)
# [END build_assets_dag]
# [START build_due_dag]
due = build_due_dag(
    "our_due", pipeline="clicks", logio_conn_id="logio_default", default_args={"on_failure_callback": print}
)
# [END build_due_dag]
# [START build_fresh_dag]
fresh = build_fresh_dag("our_fresh", logio_conn_id="logio_default")
# [END build_fresh_dag]
# [START create_asset]
hourly_sales = create_asset(connection_id="warehouse_db", place="hourly_sales", extra={"owner": "sales"})
# [END create_asset]


# [START LogioHook]
def groups_of(run_uid: str) -> list[str]:
    store = LogioHook(logio_conn_id="logio_default").get_store()
    try:
        return [group.group for group in store.groups(store.find_run(run_uid).run_id)]
    finally:
        store.dispose()


# [END LogioHook]
