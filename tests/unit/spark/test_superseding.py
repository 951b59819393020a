"""What runs of a partition have published in a folder is superseded by the next run of it, in whichever folders it lies.

A driver is stopped before each of its calls to file system or object store. Readers by receipts see the old part or the new
one, and all that others have published, which is compared with values written here.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import published_files
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.folder_days import DAYS, RECEIPTS, SIGN
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.systems.payloads import Payloads
from tests.support.file_steps import Died, every_step, standing, standing_at_objects
from tests.support.lakes import BucketLake, FolderLake, Lake, reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import DayPublisher, Publisher, Row, RunsPublisher

APPENDED = [(901, 0), (902, 1), (903, 5)]
"""What a run that appends has published there before."""
OTHER_DAY, OTHER_PIPELINE = [(801, 1), (802, 3)], [(701, 1), (702, 0)]
"""Of the same pipeline, another partition; and the same partition of another pipeline."""
BESIDE = sorted([*APPENDED, *OTHER_DAY, *OTHER_PIPELINE])


def rows(run: str) -> list[Row]:
    """What a run has, in two write actions: of three stores, which are not those of the run before."""
    number = int(run[1:].strip("'"))
    first = number * 10
    return sorted([(first, number), (first + 1, 1), (first + 2, number + 1)])


class Work:
    """Lakes that are made anew for each place to stand at; the datasets of each run are made once, as for the log."""

    def __init__(self, root: Path, lake: Lake, stride: int = 1) -> None:
        self.payloads = Payloads(str(root / "payloads"))
        self.lake = lake
        self.stride = stride
        self.standing = standing if isinstance(lake, FolderLake) else standing_at_objects
        self._made: dict[str, Sequence[WriteAction]] = {}
        self._appended = Publisher(lake.url, self.payloads, 1).action(2, APPENDED)

    def anew(self, *, beside: bool = True) -> None:
        self.empty()
        if not beside:
            return
        self.append()
        for driver, made in (
            (self.driver("o2", store=2), OTHER_DAY),
            (self.driver("p3", pipeline="clicks"), OTHER_PIPELINE),
        ):
            driver.open_day()
            key = f"{driver.run_uid} beside"
            self._made[key] = self._made.get(key) or [driver.action(2, made)]
            driver.close_day(*self._made[key])

    def append(self) -> None:
        Publisher(self.lake.url, self.payloads, 1).publish(self._appended)

    def empty(self) -> None:
        self.lake.remove(*self.lake.names())

    def driver(self, run: str, token: int = 1, **settings: Any) -> RunsPublisher:
        """Of the run with that log and ordinal, as ``a45``; ``a'45`` is another run of the same line."""
        log = run.rstrip("0123456789")
        settings = {"log": {"o": "a", "p": "a"}.get(log, log), **settings}
        made = RunsPublisher(self.lake.url, self.payloads, int(run.removeprefix(log)), token, **settings)
        made.run_uid = run if log in "op" else made.run_uid
        return made

    def actions(self, run: str, token: int = 1) -> Sequence[WriteAction]:
        if run not in self._made:
            driver, made = self.driver(run), rows(run)
            self._made[run] = [driver.action(2, made[:1]), driver.action(3, made[1:])]
        return [replace(action, token=token) for action in self._made[run]]

    def run(self, run: str, token: int = 1, **settings: Any) -> None:
        """A driver that executes all write actions of a run, as one does that has found none of them done."""
        driver = self.driver(run, token, **settings)
        driver.open_day()
        driver.close_day(*self.actions(run, token))

    def counted(self) -> list[Row]:
        """The rows of the part that count; all else is as it was."""
        return self._without(self.lake.counted())

    def listed(self) -> list[Row]:
        return self._without(self.lake.listed())

    @staticmethod
    def _without(found: list[Row]) -> list[Row]:
        assert [row for row in found if row in BESIDE] == BESIDE
        return [row for row in found if row not in BESIDE]


@pytest.fixture(scope="module")
def near() -> Iterator[Work]:
    """In memory: a test publishes some hundred times."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield Work(root, FolderLake(root))
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, objects: ObjectStore) -> Iterator[Work]:
    """In a bucket."""
    bucket = objects.new_bucket()
    with reached(objects):
        yield Work(tmp_path_factory.mktemp("far"), BucketLake(objects, bucket), stride=9)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def work(request: pytest.FixtureRequest) -> Work:
    """Each of them, with what others have published."""
    found: Work = request.getfixturevalue("near" if request.param == "folder" else "far")
    found.anew()
    return found


def test_a_run_replaces_what_its_partition_has_published_wherever_it_lies_and_nothing_else(work: Work) -> None:
    assert work.counted() == work.listed() == []
    for run in ("a4", "a5"):
        work.run(run)
        assert work.counted() == work.listed() == rows(run)
    one = published_files(f"{work.lake.url}/orders/store=1")
    assert {file.run_uid for file in one} == {"run1", "o2", "p3", "a5"}, "a folder of it is read as a part of the whole"
    names = work.lake.names()
    assert len([name for name in names if f"{DAYS}/orders@store=1/" in name]) == 4
    assert not [name for name in names if f"{DAYS}/store=1/" in name], "no day is owned"


def test_until_the_receipt_the_old_part_counts(work: Work) -> None:
    work.run("a4")
    work.driver("a5").open_day()
    assert work.counted() == work.listed() == rows("a4")


def test_dying_anywhere_leaves_the_old_part_or_the_new_one(work: Work) -> None:
    seen: list[list[Row]] = []

    def dies(at: int) -> bool:
        work.anew()
        work.run("a4")
        with work.standing(at) as steps, suppress(Died):
            work.run("a5")
        found = work.counted()
        assert found in (rows("a4"), rows("a5")), f"before call {at}"
        seen.append(found)
        work.run("a5", token=2)
        assert work.counted() == work.listed() == rows("a5"), f"after a death before call {at}"
        assert not [name for name in work.lake.names() if "/." in name]
        return steps.passed >= at

    assert every_step(dies, work.stride) > 10
    assert seen[0] == rows("a4") and seen[-1] == rows("a5")


def test_a_zombie_of_a_superseded_run_brings_nothing_back(work: Work) -> None:
    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, lambda: work.run("a5")) as steps, suppress(WriteRefused):
            work.run("a4")
        if steps.passed < at:
            return False
        assert work.counted() == rows("a5"), f"woken up before call {at}"
        work.run("a6")
        assert work.counted() == work.listed() == rows("a6"), "what it has left is removed by the next run"
        return True

    assert every_step(stands, work.stride) > 10


def test_a_zombie_of_the_same_run_changes_nothing(work: Work) -> None:
    def meanwhile() -> None:
        work.run("a4", token=2)
        work.run("a5")

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, meanwhile) as steps, suppress(ConfigurationError, WriteRefused, FileNotFoundError):
            work.run("a4")
        if steps.passed < at:
            return False
        assert work.counted() == rows("a5"), f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 10


def test_runs_of_other_partitions_and_pipelines_stand_anywhere_meanwhile(near: Work) -> None:
    """What they have is theirs, whichever of them is first."""
    work = near

    def stands(at: int) -> bool:
        work.anew(beside=False)
        others = (work.driver("o2", store=2), work.driver("p3", pipeline="clicks"))

        def meanwhile() -> None:
            for driver in others:
                driver.open_day()
                driver.close_day(*work._made[f"{driver.run_uid} beside"])
            work.append()

        with work.standing(at, meanwhile) as steps:
            work.run("a4")
        if steps.passed < at:
            return False
        assert work.counted() == work.listed() == rows("a4"), f"woken up before call {at}"
        return True

    assert every_step(stands) > 10


def test_older_runs_equal_ones_and_other_logs_are_refused(work: Work) -> None:
    work.run("a5")
    part = r"the part of pipeline 'orders' for store=1 in folder .* of connection 'lake'"
    for run, says in (("a4", f"{part} belongs to run a5, a younger one"), ("a'5", "has the same ordinal 5")):
        with pytest.raises(WriteRefused, match=says):
            work.run(run)
    with pytest.raises(WriteRefused, match=r"a5 of another pipeline or another log.*--partition 1 --take-over"):
        work.run("b9")
    assert work.counted() == work.listed() == rows("a5")
    work.run("b9", takes_over=True)
    assert work.counted() == work.listed() == rows("b9")
    with pytest.raises(WriteRefused, match="b9 of another pipeline or another log"):
        work.run("a6")


def test_records_are_not_superseded_by_none_unless_it_is_said(work: Work) -> None:
    work.run("a4")
    driver = work.driver("a5")
    driver.open_day()
    with pytest.raises(WriteRefused, match=r"run a5 has none to put in their place.*--empty`"):
        driver.close_day()
    assert work.counted() == work.listed() == rows("a4")
    work.driver("a5", word=True).close_day()
    assert work.counted() == work.listed() == []
    again = work.driver("a6")
    again.open_day()
    again.close_day()
    assert work.counted() == [], "an empty part may stay empty"


def test_a_file_by_hand_is_no_matter(work: Work) -> None:
    """It is of no run."""
    work.lake.put("orders/store=1/by_hand.parquet", work.lake.get(_a_file(work.lake.names())))
    work.run("a4")
    assert work.counted() == rows("a4") and "orders/store=1/by_hand.parquet" in work.lake.names()


def _a_file(names: Iterable[str]) -> str:
    return next(name for name in names if name.startswith("orders/store=1/run1."))


# --- beside other ways to write into a folder -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["replace", "error", "overwrite"])
def test_what_would_take_files_of_runs_is_refused(work: Work, mode: str) -> None:
    work.run("a4")
    other = Publisher(work.lake.url, work.payloads, 7, mode)
    action = replace(work._appended, run_uid="run7")
    says = rf"has files that pipelines own by their runs \(on_new_run='supersede'\), and {mode!r} would take them"
    with pytest.raises(WriteRefused, match=says):
        other.publish(*other.opening(), action)
    assert work.counted() == work.listed() == rows("a4")


def test_a_run_that_appends_stands_beside(work: Work) -> None:
    """Before, and after; its own are of no partition, so they stay."""
    work.run("a4")
    other = Publisher(work.lake.url, work.payloads, 7)
    other.publish(other.action(2, [(31, 1), (32, 9)]))
    work.run("a5")
    assert work.counted() == work.listed() == sorted([*rows("a5"), (31, 1), (32, 9)])


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_what_has_replaced_a_folder_before_stays(near: Work, mode: str) -> None:
    work = near
    work.empty()
    other = Publisher(work.lake.url, work.payloads, 1, mode)
    other.publish(*other.opening(), work._appended)
    work.run("a4")
    assert work.lake.counted() == work.lake.listed() == sorted([*APPENDED, *rows("a4")])


def test_days_and_runs_are_not_owned_in_one_folder(near: Work) -> None:
    """In both orders; of two that begin at the same time, one at most is let in. The one that is refused leaves no claim."""
    work, both = near, 0

    def day(run: int) -> None:
        driver = DayPublisher(work.lake.url, work.payloads, run)
        driver.open_day()
        driver.close_day(*work._made["day"])

    def stands(at: int) -> bool:
        nonlocal both
        work.empty()
        refused: list[str] = []

        def meanwhile() -> None:
            try:
                day(8)
            except WriteRefused as error:
                refused.append(str(error))

        with work.standing(at, meanwhile) as steps:
            try:
                work.run("a4")
            except WriteRefused as error:
                refused.append(str(error))
        if steps.passed < at:
            return False
        both += len(refused) == 2
        assert refused and all(re.search("has (files|days) that pipelines own", one) for one in refused)
        found, days, runs = work.lake.counted(), [(81, 1)], rows("a4")
        assert found == work.lake.listed() and found in ([[]] if len(refused) == 2 else [days, runs])
        if not found:
            work.run("a4", token=2)
            assert work.lake.counted() == work.lake.listed() == runs
        return True

    driver = DayPublisher(work.lake.url, work.payloads, 8)
    work._made["day"] = [driver.action(2, [(81, 1)])]
    assert every_step(stands) > 10
    assert both <= 4


def test_earlier_versions_cannot_read_it(work: Work) -> None:
    work.run("a4")
    assert f"orders/{RECEIPTS}/{SIGN}" in work.lake.names()
