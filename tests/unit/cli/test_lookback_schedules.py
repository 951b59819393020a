"""Runs of a day and of the day before that meet: commands that look back, die and are repeated, and a person between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from airflow_logio.cli import lookback
from airflow_logio.cli.lookback import look_back
from airflow_logio.cli.preparation import CLI_DAG_ID
from airflow_logio.dataflow.pipeline.days import Days
from airflow_logio.errors import LogioError
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunKey
from airflow_logio.supervision.lookback import Left
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.simulator.stepwise import Paused, Questions
from tests.support.logs import spec, start_driver

BEFORE, DAY = "2026-03-01", "2026-03-02"
KEY = Days("day", zone="UTC").key_of(BEFORE)
SCHEDULES = 400
NUMBERS = count()


def begin(store: LogStore, partition: str) -> Run:
    key = RunKey("sales", CLI_DAG_ID, f"sales__{partition}")
    return store.start_run(replace(spec("g"), key=key, partition=partition, writers=()))


def compute(store: LogStore, run: Run) -> None:
    """All of a run that is begun, by one driver; another one's work is left to it."""
    if store.find_run(run.uid).state is RunState.RUNNING:
        start_driver(store, run=run).session.commit([fx.FinishGroup()])
        assert store.finish_run(run.run_id)


class Asking:
    """A log, each question to which comes at an instant of its own."""

    def __init__(self, store: LogStore, questions: Questions) -> None:
        self._store = store
        self._questions = questions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **said: self._questions.ask(lambda: getattr(self._store, name)(*args, **said))


class Command:
    """`logio run --partition DAY --lookback`, behind its own run: a few questions at a time, until it ends or dies."""

    def __init__(self, store: LogStore, run: Run) -> None:
        self._store = store
        self._run = run
        self._questions = Questions()
        self._log: Any = Asking(store, self._questions)
        self.said = ""

    def advance(self, many: int) -> bool:
        """Whether it has ended."""
        self._questions.begin(many)
        try:
            found = look_back(self._log, self._run, KEY)
            if isinstance(found, Left):
                self.said = found.why
                return True
            again = self._questions.ask(partial(begin, self._store, BEFORE))
            self._questions.ask(partial(compute, self._store, again))
        except Paused:
            return False
        except LogioError as error:
            self.said = str(error)
        return True


def person(store: LogStore) -> Iterator[None]:
    """`logio again` for the day before, then its run: each at an instant of its own."""
    (newest, *_) = store.list_runs(partition=BEFORE)
    yield
    store.supersede(newest.run_id, because="a person")
    yield
    run = begin(store, BEFORE)
    yield
    compute(store, run)


def met(seed: int) -> tuple[LogStore, Run, Counter[str]]:
    """The log after all that has happened, and the run of the day that looks back."""
    chance, store = Random(seed), MemoryLogStore()
    compute(store, begin(store, BEFORE))
    compute(store, run := begin(store, DAY))
    at_work: list[Command | Iterator[None]] = [Command(store, run) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.5:
        at_work.append(person(store))
    seen = Counter[str]()
    while at_work:
        one = chance.choice(at_work)
        ended = one.advance(chance.randint(1, 2)) if isinstance(one, Command) else next(one, "over") == "over"
        seen["dies"] += (dies := not ended and chance.random() < 0.15 and isinstance(one, Command))
        if ended or dies:
            at_work.remove(one)
            seen["done by another"] += isinstance(one, Command) and "by another command" in one.said
    assert Command(store, run).advance(100), "one that nothing disturbs ends"
    return store, run, seen


def check(store: LogStore, run: Run) -> None:
    runs = store.list_runs(partition=BEFORE)
    for_it = [one for one in runs if str(one.because).startswith("lookback")]
    assert len(for_it) <= 1, "the day before is given up once for a run that looks back"
    assert runs[0].state is RunState.FINISHED, "the day before is computed, whoever has died"
    assert runs[0].ordinal > run.ordinal, "it is computed behind the day that looks back"
    assert len(runs) <= 2 + sum(one.because == "a person" for one in runs), "it is computed again once"


def test_the_day_before_is_computed_again_once_whatever_meets() -> None:
    seen = Counter[str]()
    for seed in range(SCHEDULES):
        store, run, figures = met(seed)
        check(store, run)
        seen += figures
    assert seen["dies"] >= 10 and seen["done by another"] >= 1, seen


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_reason", lambda _run: f"lookback {next(NUMBERS)}"),
        ("_begun_before", lambda _runs, _given_up, _key: Left("it was given up before")),
        ("_why_not", lambda _newest: "nothing is computed again"),
    ],
)
def test_a_broken_rule_is_caught(name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookback, name, broken)
    with pytest.raises(AssertionError):
        for seed in range(SCHEDULES):
            store, run, _ = met(seed)
            check(store, run)
