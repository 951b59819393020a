"""Where an author's code has failed: known, or not said. What is not known is no point to which a failure comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.runtime.external import Connections, WriterIdentity
from airflow_logio.runtime.logic import StatefulLogic
from tests.support.logics import fed


class Broken:
    """Fails in every phase."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError


def logic() -> StatefulLogic:
    connections = Connections({}, WriterIdentity("run", 1, 0.0), 1.0)
    return StatefulLogic("p", "op", Broken(), connections)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "at"),
    [
        (lambda: logic().assign("in", fed(7), {}), FailurePoint("op", "in", 7)),
        (lambda: logic().part("in", fed(7), "A"), FailurePoint("op", "in", 7, "A")),
        (lambda: list(logic().generate("A", [], {})), FailurePoint("op", inset_id="A")),
        (lambda: logic().accumulate([], "of any event"), None),
        (lambda: logic().triggered({}, ["A"]), None),
        (lambda: logic().flush({}, ["A"]), None),
    ],
)
def test_a_failure_is_at_the_event_or_input_set_that_is_known(
    phase: Callable[[], object], at: FailurePoint | None
) -> None:
    with pytest.raises(OperatorFailed) as caught:
        phase()
    assert caught.value.at == at
