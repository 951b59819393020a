"""The scenarios that this repository runs in the simulator, by name: `logio simulate tests.simulator:SCENARIOS.linear`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_logio.testing.simulator.plan import Scenario
from tests.simulator.days import DAY_IN_ONE, DAY_IN_THREE, DAY_IN_TWO
from tests.simulator.generating import FUNCTIONS, NONDETERMINISTIC, QUARANTINE
from tests.simulator.linear import LINEAR
from tests.simulator.reading import FEED, SIDE_READS
from tests.simulator.replaying import RECALLED, REKEYED, REPLAYED
from tests.simulator.replica_groups import COPIES, KEYED, SPREAD
from tests.simulator.retrying import RETRY
from tests.simulator.use_case_two import SYNCHRONIZED
from tests.simulator.writing import CHECKABLE, IDEMPOTENT, SWAPPED

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
    DAY_IN_ONE,
    DAY_IN_TWO,
    DAY_IN_THREE,
)


def _itself(scenario: Scenario) -> Scenario:
    return scenario


def _sales() -> Scenario:
    from tests.simulator.sales import sales  # Only the scenarios that need Arrow's compute functions load them

    return sales()


def _scaled() -> Scenario:
    from tests.simulator.scaled import scaled

    return scaled()


def _lake() -> Scenario:
    from tests.simulator.lake.scenarios import lake_scenario

    return lake_scenario()


def _effects() -> Scenario:
    from tests.simulator.lake.scenarios import effects_scenario

    return effects_scenario()


def _stored() -> Scenario:
    from tests.simulator.lake.stored_ranges import stored_ranges_scenario

    return stored_ranges_scenario()


ALL = "tests.simulator:SCENARIOS"
"""How a campaign and `logio simulate` name all of them."""
SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    **{scenario.name: partial(_itself, scenario) for scenario in _PLAIN},
    "sales": _sales,
    "scaled": _scaled,
    "lake": _lake,
    "effects": _effects,
    "stored": _stored,
}
"""Name → function that makes the scenario."""


def reference(name: str) -> str:
    """How a campaign and `logio simulate` name one of them."""
    return f"{ALL}.{name}"
