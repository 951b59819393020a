"""What a new run does to the files of earlier ones (`on_new_run` of a `DatasetWriter`), wherever drivers die or stand still.

A driver is stopped before each of its calls to the file system. Compared with a model in plain Python: runs one after the
other, in the order of their starts.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio import DatasetWriter
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.runtime.datasets.folder_inspection import check_not_replaced
from airflow_logio.runtime.payloads import Payloads
from tests.support.file_steps import Died, every_step, standing
from tests.support.publishers import Publisher, Row, counted, listed

OLD = (((1, 0), (2, 1)), ((3, 1), (4, 2)))
"""The write actions of an older run, and those of a younger one: rows of store 0 to 3."""
YOUNG = (((11, 1), (12, 3)), ((13, 1),))
LAST = ((21, 0), (22, 1))
MODES = ("append", "replace", "overwrite")


def after(mode: str, before: Iterable[Row], actions: Iterable[Sequence[Row]]) -> list[Row]:
    """What counts when a run of that mode has done these actions."""
    rows = [] if mode == "replace" else list(before)
    written = {store for action in actions for _, store in action}
    if mode == "overwrite":
        rows = [row for row in rows if row[1] not in written]
    return sorted([*rows, *(row for action in actions for row in action)])


class Work:
    """Folders that are made anew for each place to stand at; what is published was made once, as for the log."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._payloads = Payloads(str(root / "payloads"))
        self.lake = root / "none"
        self._made = {run: self._datasets(run, rows) for run, rows in ((1, OLD), (2, YOUNG), (3, (LAST,)))}

    def anew(self) -> None:
        shutil.rmtree(self.lake, ignore_errors=True)
        self.lake = Path(tempfile.mkdtemp(dir=self._root))

    def driver(self, run: int, mode: str = "append", token: int = 1) -> Publisher:
        return Publisher(self.lake, self._payloads, run, mode, token)

    def run(self, run: int, mode: str = "append", token: int = 1) -> None:
        """A driver that executes all write actions of a run, as one does that has found none of them done."""
        driver = self.driver(run, mode, token)
        driver.publish(*driver.opening(), *(replace(action, token=token) for action in self._made[run]))

    def _datasets(self, run: int, actions: Sequence[Sequence[Row]]) -> Sequence[WriteAction]:
        return [self.driver(run).action(number, rows) for number, rows in enumerate(actions, start=2)]


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    """In memory: a test publishes some hundred times."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield Work(root)
    shutil.rmtree(root)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_anywhere_is_completed_by_its_next_driver(work: Work, mode: str) -> None:
    """Readers by receipts see it before or after each of its write actions, never in between."""
    states = [after("append", (), OLD)]
    states += [after(mode, states[0], YOUNG[:count]) for count in range(len(YOUNG) + 1)]
    seen: list[list[Row]] = []

    def dies(at: int) -> bool:
        work.anew()
        work.run(1)
        with standing(at) as steps, suppress(Died):
            work.run(2, mode)
        found = counted(work.lake)
        assert found in states, f"before call {at}"
        assert states.index(found) >= max([states.index(one) for one in seen], default=0), "never back"
        seen.append(found)
        work.run(2, mode, token=2)
        assert counted(work.lake) == listed(work.lake) == states[-1], f"after a death before call {at}"
        assert not [path for path in work.lake.rglob("*") if path.is_file() and path.name.startswith(".")]
        return steps.passed >= at

    steps = every_step(dies)
    assert steps > 30
    assert [one for number, one in enumerate(seen) if one not in seen[:number]] == states_that_differ(states)
    if mode == "replace":
        assert [path.name for path in work.lake.rglob("*run1.*")] == ["00000000001000000.run1.joins"]


def states_that_differ(states: Sequence[list[Row]]) -> list[list[Row]]:
    return [one for number, one in enumerate(states) if one not in states[:number]]


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_a_zombie_of_the_same_run_changes_nothing(work: Work, mode: str) -> None:
    """It stands still anywhere; its successor does everything, and a run after that adds; then it wakes up."""

    def meanwhile() -> None:
        work.run(2, mode, token=2)
        work.run(3)

    def stands(at: int) -> bool:
        work.anew()
        work.run(1)
        with standing(at, meanwhile) as steps, suppress(ConfigurationError):  # its successor has removed a hidden file
            work.run(2, mode)
        if steps.passed < at:
            return False
        expected = after("append", after(mode, after("append", (), OLD), YOUNG), (LAST,))
        assert counted(work.lake) == listed(work.lake) == expected, f"woken up before call {at}"
        return True

    assert every_step(stands) > 30


@pytest.mark.parametrize(
    ("older", "mode"), [("append", "replace"), ("append", "overwrite"), ("overwrite", "overwrite")]
)
def test_a_zombie_of_an_older_run_brings_nothing_back(work: Work, older: str, mode: str) -> None:
    """It stands still anywhere, and a younger run does everything. What it did by then counts as done before."""
    refused = []

    def stands(at: int) -> bool:
        work.anew()
        with standing(at, lambda: work.run(2, mode)) as steps:
            try:
                work.run(1, older)
                done = OLD
            except WriteRefused as error:
                assert "run run1 must not write to it any more" in str(error)
                refused.append(at)
                done = None
        if steps.passed < at:
            return False
        possible = [after(mode, after(older, (), OLD[:count]), YOUNG) for count in range(3)]
        found = counted(work.lake)
        assert found in (possible if done is None else possible[2:]), f"woken up before call {at}"
        if mode == "replace":
            assert listed(work.lake) == found
        else:  # of an action that was refused half-way, the other partitions keep what receipts do not name
            assert set(listed(work.lake)) - set(found) <= {(1, 0), (4, 2)}
        return True

    steps = every_step(stands)
    assert 20 < len(refused) < steps


@pytest.mark.parametrize("mode", ["replace", "overwrite", "error"])
def test_an_older_run_that_publishes_beside_a_younger_one_loses_nothing_silently(work: Work, mode: str) -> None:
    """The younger one stands still anywhere. Each of them is exact or refused, and both are not exact in one order only."""
    outcomes = set()

    def stands(at: int) -> bool:
        work.anew()
        done = {1: False, 2: False}

        def run(number: int, how: str) -> None:
            try:
                work.run(number, how)
                done[number] = True
            except WriteRefused:
                pass

        with standing(at, lambda: run(1, "append")) as steps:
            run(2, mode)
        if steps.passed < at:
            return False
        found, last = counted(work.lake), after(mode, (), YOUNG)
        if mode == "error":
            assert not all(done.values()), "who finds a file of another run is refused"
            if done[2]:
                assert found == last
            elif done[1]:
                assert found == after("append", (), OLD)
        else:
            assert done[2]
            assert found in [after(mode, OLD[0] * (count > 0) + OLD[1] * (count > 1), YOUNG) for count in range(3)]
            assert not done[1] or found == after(mode, after("append", (), OLD), YOUNG)
            assert mode == "overwrite" or listed(work.lake) == found
        outcomes.add(tuple(done.values()))
        return True

    every_step(stands)
    assert outcomes == ({(True, False), (False, True)} if mode == "error" else {(True, True), (False, True)})


def test_error_refuses_files_of_anybody_else_and_leaves_no_trace(work: Work) -> None:
    work.anew()
    work.run(1)
    before = sorted(work.lake.rglob("*"))
    with pytest.raises(WriteRefused, match=r"is not empty \(store=.*its writer says on_new_run='error'; empty it"):
        work.run(2, "error")
    assert sorted(work.lake.rglob("*")) == before
    for path in [*work.lake.rglob("*.parquet")]:
        path.unlink()
    with pytest.raises(WriteRefused, match=r"is not empty \(_logio/run1\.save\.\.\.\)"):
        work.run(2, "error")
    shutil.rmtree(work.lake / "orders")
    work.run(2, "error")
    work.run(3)
    work.run(2, "error", token=2)  # executed again after a younger run has come: it had begun
    assert counted(work.lake) == listed(work.lake) == after("append", (), (*YOUNG, LAST))
    with pytest.raises(WriteRefused, match=r"belongs to run run2: a newer run has taken it over"):
        work.run(1)


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_what_no_run_has_published_is_not_removed(work: Work, mode: str) -> None:
    work.anew()
    foreign = work.lake / "orders" / "store=1" / "part-0.snappy.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"of another program")
    with pytest.raises(
        WriteRefused, match=r"has store=1/part-0\.snappy\.parquet, which no run of this folder has published"
    ):
        work.run(2, mode)
    assert foreign.exists()
    foreign.unlink()
    (work.lake / "orders" / "store=1" / "_logio").mkdir()  # another writer's folder
    with pytest.raises(WriteRefused, match=r"has store=1(/_logio)?, which no run of this folder"):
        work.run(2, mode)


def test_what_readers_that_list_would_read_is_looked_at(work: Work) -> None:
    """Partitions of a column that begins with an underscore, and folders behind links; not what a disk keeps at its root."""
    work.anew()
    orders = work.lake / "orders"
    (orders / "lost+found").mkdir(parents=True)
    (orders / "lost+found" / "#12").touch()
    (orders / "_region=eu").mkdir()
    (orders / "_region=eu" / "part-0.parquet").touch()
    with pytest.raises(WriteRefused, match=r"is not empty \(_region=eu/part-0\.parquet\)"):
        work.run(2, "error")
    shutil.rmtree(orders / "_region=eu")
    (work.lake / "elsewhere").mkdir()
    (orders / "store=7").symlink_to(work.lake / "elsewhere")
    with pytest.raises(WriteRefused, match=r"has store=7, which no run of this folder"):
        work.run(2, "replace")
    (orders / "store=7").unlink()
    work.run(2, "error")


def test_a_damaged_receipt_is_named(work: Work) -> None:
    work.anew()
    work.run(1)
    work.run(3, "overwrite")
    receipt = next((work.lake / "orders" / "_logio").glob("run3.*.json"))
    receipt.write_text("{")
    with pytest.raises(
        ConfigurationError, match=rf"{receipt.name} is no receipt of a DatasetWriter.*move it elsewhere"
    ):
        work.run(2)


def test_nothing_is_put_back_where_a_newer_run_overwrites(work: Work) -> None:
    """Which partitions would get the records is not known before: put back, they might park the run for good."""
    work.anew()
    work.run(1)
    work.run(2, "overwrite")
    writer = DatasetWriter("lake", "orders", partition_by=("store",))
    check_not_replaced(writer, str(work.lake), Owner("run3", 3.0))
    with pytest.raises(WriteRefused, match=r"run run2, a newer one, overwrites partitions.*run run1 must not write"):
        check_not_replaced(writer, str(work.lake), Owner("run1", 1.0))


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_what_is_seen_before_its_record_does_not_count_and_is_not_removed(work: Work, mode: str) -> None:
    """A file system that shows names late may show a younger run's files, and not yet that it is younger."""
    work.anew()
    work.run(1)
    work.run(3)
    record = next(work.lake.rglob("*.run3.joins"))
    record.rename(work.lake / record.name)
    assert counted(work.lake) == after("append", (), OLD)
    with pytest.raises(WriteRefused, match=r"has store=[01]/run3\.save.*, which no run of this folder has published"):
        work.run(2, mode)
    assert listed(work.lake) == after("append", (), (*OLD, LAST))
    (work.lake / record.name).rename(record)
    work.run(2, mode)
    assert (
        counted(work.lake)
        == listed(work.lake)
        == after("append", after(mode, after("append", (), OLD), YOUNG), (LAST,))
    )


def test_a_fresh_run_shuts_out_the_one_that_was_given_up(work: Work) -> None:
    work.anew()
    work.run(1)
    fresh = work.driver(2)
    fresh.publish(fresh.action(1, YOUNG[0]), is_fresh=True)
    assert counted(work.lake) == listed(work.lake) == after("append", (), (*OLD, YOUNG[0])), "it appends all the same"
    with pytest.raises(WriteRefused, match="run run1 must not write"):
        work.run(1, token=2)
    writer = DatasetWriter("lake", "orders")
    check_not_replaced(writer, str(work.lake), Owner("run2", 2.0))
    with pytest.raises(WriteRefused, match="run run1 must not write"):
        check_not_replaced(writer, str(work.lake), Owner("run1", 1.0))
