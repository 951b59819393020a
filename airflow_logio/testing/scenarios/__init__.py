"""The scenarios of this package, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_logio.testing.scenarios.generating import FUNCTIONS, NONDETERMINISTIC, QUARANTINE
from airflow_logio.testing.scenarios.linear import LINEAR
from airflow_logio.testing.scenarios.reading import FEED, SIDE_READS
from airflow_logio.testing.scenarios.replaying import RECALLED, REKEYED, REPLAYED
from airflow_logio.testing.scenarios.replica_groups import COPIES, KEYED, SPREAD
from airflow_logio.testing.scenarios.retrying import RETRY
from airflow_logio.testing.scenarios.use_case_two import SYNCHRONIZED
from airflow_logio.testing.scenarios.writing import CHECKABLE, IDEMPOTENT, SWAPPED
from airflow_logio.testing.simulator.plan import Scenario

_PLAIN = (
    LINEAR,
    SYNCHRONIZED,
    SIDE_READS,
    CHECKABLE,
    IDEMPOTENT,
    SWAPPED,
    NONDETERMINISTIC,
    FUNCTIONS,
    FEED,
    QUARANTINE,
    RETRY,
    SPREAD,
    COPIES,
    KEYED,
    REPLAYED,
    RECALLED,
    REKEYED,
)


def _itself(scenario: Scenario) -> Scenario:
    return scenario


def _sales() -> Scenario:
    from airflow_logio.testing.scenarios.sales import (
        sales,  # Only the scenarios that need Arrow's compute functions load them
    )

    return sales()


def _scaled() -> Scenario:
    from airflow_logio.testing.scenarios.scaled import scaled

    return scaled()


def _lake() -> Scenario:
    from airflow_logio.testing.scenarios.lake import lake_scenario

    return lake_scenario()


def _effects() -> Scenario:
    from airflow_logio.testing.scenarios.lake import effects_scenario

    return effects_scenario()


def _stored() -> Scenario:
    from airflow_logio.testing.scenarios.stored_ranges import stored_ranges_scenario

    return stored_ranges_scenario()


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    **{scenario.name: partial(_itself, scenario) for scenario in _PLAIN},
    "sales": _sales,
    "scaled": _scaled,
    "lake": _lake,
    "effects": _effects,
    "stored": _stored,
}
"""Name → function that makes the scenario."""
