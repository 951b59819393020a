"""Whether the recovery budget of a group is spent (`store/sql/groups.py` asks the same of a database)."""

from __future__ import annotations

from airflow_logio.store.memory.tables import GroupKey, Tables


def budget_spent(tables: Tables, key: GroupKey) -> str | None:
    """Why the group is parked; None if it may be recovered."""
    clock = tables.now()
    budget = tables.runs[key.run_id].spec.budget
    all_mine = [(n, row) for (other, n), row in sorted(tables.drivers.items()) if other == key]
    mine = [(n, row) for n, row in all_mine if n > 1]
    forgiven = max((n for n, row in mine if not row.spends_budget), default=0)
    points = [row.failed_at for n, row in all_mine if n >= forgiven]
    if budget.is_spent_at(points):
        return (
            f"group {key.group!r} failed at {points[-1]} again after {budget.same_event} recoveries; it is parked. "
            "Fix the operator, or the data it cannot use, and `logio retry` the group (--code new after a change of the code)"
        )
    spent = [(n, row) for n, row in mine if n > forgiven]
    if not budget.is_spent([clock - row.claimed_at for _, row in spent]):
        return None
    causes = "\n".join(f"  incarnation {n}: {row.reason}" for n, row in spent[-budget.recoveries :])
    return (
        f"group {key.group!r} was recovered {budget.recoveries} times within {budget.window_seconds:g} s and "
        f"failed again; it is parked. Recoveries:\n{causes}"
    )
