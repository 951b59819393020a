"""A run as large as any: a hundred groups, ten of them replicated, five hundred replicas, and a driver for each of them."""

from __future__ import annotations

from dataclasses import replace

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.run_records import OperatorShape, ReplicatedShape, Run, RunSpec
from tests.support.logs import spec, start_driver


def large_spec(plain: int, replicated: int, replicas: int, slots: int, dag_run: str) -> RunSpec:
    """A chain of `plain` groups, and so many replicated ones that read what the first of them sends."""
    names = [f"g{number:03d}" for number in range(plain)]
    shapes = {"o000": OperatorShape("g000", {}, ("out",))}
    for number, name in enumerate(names[1:], 1):
        shapes[f"o{number:03d}"] = OperatorShape(name, {"in": f"o{number - 1:03d}.out"}, ("out",))
    groups, scaled = list(names), {}
    for number in range(replicated):
        whole = f"r{number:02d}"
        inside = tuple(f"{whole}.{one}" for one in range(1, replicas + 1))
        scaled[whole] = ReplicatedShape(inside, slots, replicas)
        groups += [*inside, f"end{number:02d}"]
        out = tuple(f"slot{slot}" for slot in range(slots))
        shapes[f"dispatch(w{number:02d})"] = OperatorShape("g000", {"in": "o000.out"}, out)
        for slot in range(slots):
            sender = f"dispatch(w{number:02d}).slot{slot}"
            shapes[f"w{number:02d}[{slot}]"] = OperatorShape(whole, {"in": sender}, ("out",))
        merged = {f"slot{slot}": f"w{number:02d}[{slot}].out" for slot in range(slots)}
        shapes[f"merge(w{number:02d})"] = OperatorShape(f"end{number:02d}", merged, ("out",))
        shapes[f"end{number:02d}"] = OperatorShape(f"end{number:02d}", {"in": f"merge(w{number:02d}).out"})
    return replace(spec(*groups, dag_run=dag_run), operators=shapes, replicated=scaled)


def large_run(
    store: LogStore,
    plain: int = 90,
    replicated: int = 10,
    replicas: int = 50,
    slots: int = 64,
    *,
    dag_run: str = "large",
) -> Run:
    """Every group has a driver that has counted, and has said how it spends its time; some have been recovered."""
    shape = large_spec(plain, replicated, replicas, slots, dag_run)
    run = store.start_run(shape)
    of_group: dict[str, list[fx.Effect]] = {}
    for name, operator in shape.operators.items():
        home = operator.group if operator.group not in shape.replicated else f"{operator.group}.1"
        counts = [fx.CountEvents(Port(name, port), "in", 9_000, 900_000, 0) for port in operator.inputs]
        counts += [fx.CountEvents(Port(name, port), "out", 10_000, 1_000_000, 0) for port in operator.outputs]
        of_group.setdefault(home, []).extend(counts)
    load = Load(10.0, 0.5, 0.3, 0.2, 100, 10_000, 100, 10_000, queued=3, lag_seconds=0.2)
    for number, group in enumerate(shape.groups):
        driver = start_driver(store, group=group, run=run)
        if number % 10 == 0:
            assert store.declare_dead(driver.ref, "a test")
            driver = start_driver(store, group=group, expected=1, run=run)
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1 << 28, load=load)
        driver.session.commit(of_group.get(group, []))
        driver.session.close()
    return run
