"""What a new run does to the files of earlier ones (`on_new_run` of a `DatasetWriter`), wherever drivers die or stand still.

A driver is stopped before each of its calls to the file system. Compared with a model in plain Python: runs one after the
other, in the order of their starts.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio import DatasetWriter
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.folder_files import LocalFiles
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.folder_rules import Age, Effect, RunRecord
from airflow_logio.spark.publishing import check_not_replaced
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.payloads import Payloads
from tests.support.file_steps import Died, Steps, every_step, standing, standing_at_objects
from tests.support.lakes import BucketLake, FolderLake, Lake, reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import Publisher, Row

OLD = (((1, 0), (2, 1)), ((3, 1), (4, 2)))
"""The write actions of an older run, and those of a younger one: rows of store 0 to 3."""
YOUNG = (((11, 1), (12, 3)), ((13, 1),))
LAST = ((21, 0), (22, 1))
MODES = ("append", "replace", "overwrite")
Standing = Callable[..., AbstractContextManager[Steps]]


def after(mode: str, before: Iterable[Row], actions: Iterable[Sequence[Row]]) -> list[Row]:
    """What counts when a run of that mode has done these actions."""
    rows = [] if mode == "replace" else list(before)
    written = {store for action in actions for _, store in action}
    if mode == "overwrite":
        rows = [row for row in rows if row[1] not in written]
    return sorted([*rows, *(row for action in actions for row in action)])


class Work:
    """Lakes that are made anew for each place to stand at; what is published was made once, as for the log.

    `standing` is before calls to such a lake. Drivers stand before one in `stride` of them.
    """

    def __init__(self, root: Path, make: Callable[[], Lake], standing: Standing, stride: int = 1) -> None:
        self._payloads = Payloads(str(root / "payloads"))
        self._make = make
        self.standing = standing
        self.stride = stride
        self.lake = make()
        self._made = {run: self._datasets(run, rows) for run, rows in ((1, OLD), (2, YOUNG), (3, (LAST,)))}

    def anew(self) -> None:
        if isinstance(self.lake, FolderLake):
            shutil.rmtree(self.lake.folder)
        self.lake = self._make()

    def driver(self, run: int, mode: str = "append", token: int = 1) -> Publisher:
        return Publisher(self.lake.url, self._payloads, run, mode, token)

    def actions(self, run: int) -> Sequence[WriteAction]:
        return self._made[run]

    def run(self, run: int, mode: str = "append", token: int = 1, given_up: tuple[str, ...] = ()) -> None:
        """A driver that executes all write actions of a run, as one does that has found none of them done."""
        driver = self.driver(run, mode, token)
        actions = (replace(action, token=token) for action in self._made[run])
        driver.publish(*driver.opening(), *actions, given_up=given_up)

    def _datasets(self, run: int, actions: Sequence[Sequence[Row]]) -> Sequence[WriteAction]:
        return [self.driver(run).action(number, rows) for number, rows in enumerate(actions, start=2)]


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    """In memory: a test publishes some hundred times."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield Work(root, lambda: FolderLake(root), standing)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, objects: ObjectStore) -> Iterator[Work]:
    """In a bucket."""
    bucket = objects.new_bucket()
    with reached(objects):
        yield Work(tmp_path_factory.mktemp("far"), lambda: BucketLake(objects, bucket), standing_at_objects, stride=11)


BUCKET = pytest.param("bucket", marks=pytest.mark.slow)


@pytest.fixture(params=["folder", BUCKET])
def place(request: pytest.FixtureRequest) -> Work:
    """Each of them, new."""
    found: Work = request.getfixturevalue("work" if request.param == "folder" else "far")
    found.anew()
    return found


def on_both(*modes: str, in_buckets: Sequence[str]) -> pytest.MarkDecorator:
    """Each mode in a folder and in a bucket, where a driver takes a hundred times as long: so most are left to the soak."""
    cases = [pytest.param("folder", mode) for mode in modes]
    for mode in modes:
        mark = pytest.mark.slow if mode in in_buckets else pytest.mark.soak
        cases.append(pytest.param("bucket", mode, marks=mark))
    return pytest.mark.parametrize(("place", "mode"), cases, indirect=["place"])


@on_both(*MODES, in_buckets=("replace", "overwrite"))
def test_a_run_that_dies_anywhere_is_completed_by_its_next_driver(place: Work, mode: str) -> None:
    """Readers by receipts see it before or after each of its write actions, never in between."""
    work = place
    states = [after("append", (), OLD)]
    states += [after(mode, states[0], YOUNG[:count]) for count in range(len(YOUNG) + 1)]
    seen: list[list[Row]] = []

    def dies(at: int) -> bool:
        work.anew()
        work.run(1)
        with work.standing(at) as steps, suppress(Died):
            work.run(2, mode)
        found = work.lake.counted()
        assert found in states, f"before call {at}"
        assert states.index(found) >= max([states.index(one) for one in seen], default=0), "never back"
        seen.append(found)
        work.run(2, mode, token=2)
        assert work.lake.counted() == work.lake.listed() == states[-1], f"after a death before call {at}"
        assert not [name for name in work.lake.names() if "/." in name]
        return steps.passed >= at

    assert every_step(dies, work.stride) > 20
    if work.stride == 1:
        assert states_that_differ(seen) == states_that_differ(states)
    if mode == "replace":
        assert [name for name in work.lake.names() if "run1." in name] == [
            "orders/_logio/runs/00000000001000000.run1.joins"
        ]


def states_that_differ(states: Sequence[list[Row]]) -> list[list[Row]]:
    return [one for number, one in enumerate(states) if one not in states[:number]]


@on_both("replace", "overwrite", in_buckets=())
def test_a_zombie_of_the_same_run_changes_nothing(place: Work, mode: str) -> None:
    """It stands still anywhere; its successor does everything, and a run after that adds; then it wakes up."""
    work = place

    def meanwhile() -> None:
        work.run(2, mode, token=2)
        work.run(3)

    def stands(at: int) -> bool:
        work.anew()
        work.run(1)
        with (
            work.standing(at, meanwhile) as steps,
            suppress(ConfigurationError),
        ):  # its successor has removed a hidden file
            work.run(2, mode)
        if steps.passed < at:
            return False
        expected = after("append", after(mode, after("append", (), OLD), YOUNG), (LAST,))
        assert work.lake.counted() == work.lake.listed() == expected, f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 30


@on_both("append replace", "append overwrite", "overwrite overwrite", in_buckets=("append replace", "append overwrite"))
def test_a_zombie_of_an_older_run_brings_nothing_back(place: Work, mode: str) -> None:
    """It stands still anywhere, and a younger run does everything. What it did by then counts as done before."""
    work, (older, mode) = place, mode.split()
    refused = []

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, lambda: work.run(2, mode)) as steps:
            try:
                work.run(1, older)
                done = OLD
            except WriteRefused as error:
                assert "run run1 must not write to it any more" in str(error) or "later than this run run1" in str(
                    error
                )
                refused.append(at)
                done = None
        if steps.passed < at:
            return False
        possible = [after(mode, after(older, (), OLD[:count]), YOUNG) for count in range(3)]
        found = work.lake.counted()
        assert found in (possible if done is None else possible[2:]), f"woken up before call {at}"
        if mode == "replace":
            assert work.lake.listed() == found
        else:  # of an action that was refused half-way, the other partitions keep what receipts do not name
            assert set(work.lake.listed()) - set(found) <= {(1, 0), (4, 2)}
        return True

    steps = every_step(stands, work.stride)
    assert refused
    assert work.stride > 1 or 20 < len(refused) < steps


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_an_older_run_whose_objects_are_removed_before_it_looks_is_refused(far: Work, mode: str) -> None:
    """Its driver does not see what its executors have put: that is no fault of the store."""
    far.anew()
    older = far.driver(1)
    older.after_copies = lambda: far.run(2, mode)
    with pytest.raises(WriteRefused, match="run run1 must not write to it any more"):
        older.publish(older.action(5 + MODES.index(mode), YOUNG[0]))
    assert far.lake.counted() == far.lake.listed() == after(mode, (), YOUNG)


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
        found, last = work.lake.counted(), after(mode, (), YOUNG)
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
            assert mode == "overwrite" or work.lake.listed() == found
        outcomes.add(tuple(done.values()))
        return True

    every_step(stands)
    assert outcomes == ({(True, False), (False, True)} if mode == "error" else {(True, True), (False, True)})


def test_error_refuses_files_of_anybody_else_and_leaves_no_trace(place: Work) -> None:
    work = place
    work.run(1)
    before = work.lake.names()
    with pytest.raises(WriteRefused, match=r"is not empty \(store=.*its writer says on_new_run='error'; empty it"):
        work.run(2, "error")
    assert work.lake.names() == before
    work.lake.remove(*(name for name in before if name.endswith(".parquet")))
    with pytest.raises(WriteRefused, match=r"is not empty \(_logio/run1\.save\.\d{12}\.json\)"):
        work.run(2, "error")
    work.lake.remove(*work.lake.names())
    work.run(2, "error")
    work.run(3)
    work.run(2, "error", token=2)  # executed again after a younger run has come: it had begun
    assert work.lake.counted() == work.lake.listed() == after("append", (), (*YOUNG, LAST))
    closed = r"belongs to run run2: a newer run has taken it over, and older ones may add nothing.*`logio fresh run1`"
    with pytest.raises(WriteRefused, match=closed):
        work.run(1)


def test_a_run_whose_files_were_replaced_is_told_so(place: Work) -> None:
    """Even if a still younger one allows no others."""
    work = place
    work.run(1)
    work.run(2, "replace")
    work.lake.put("orders/_logio/runs/" + RunRecord(Age(3_000_000, "run3"), Effect.CLOSES).name)
    with pytest.raises(
        WriteRefused, match=r"belongs to run run2: .* and replaced what older ones had published, and run"
    ):
        work.run(1)


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_what_no_run_has_published_is_not_removed(place: Work, mode: str) -> None:
    work, foreign = place, "orders/store=1/part-0.snappy.parquet"
    work.lake.put(foreign, b"of another program")
    with pytest.raises(
        WriteRefused, match=r"has store=1/part-0\.snappy\.parquet, which no run of this folder has published"
    ):
        work.run(2, mode)
    assert foreign in work.lake.names()
    work.lake.remove(foreign)
    work.lake.put("orders/store=1/_logio/x.json")  # another writer's folder
    with pytest.raises(WriteRefused, match=r"has store=1(/_logio)?, which no run of this folder"):
        work.run(2, mode)


def test_a_partition_of_which_only_folders_are_left_is_overwritten(place: Work) -> None:
    """An earlier run had more columns in `partition_by`, and was replaced: files go, and folders stay."""
    work = place
    work.run(1)
    work.run(2, "replace")
    work.lake.files.create_dir(f"{work.lake.root}/orders/store=0/day=2")
    work.run(3, "overwrite")
    assert work.lake.counted() == work.lake.listed() == after("overwrite", after("append", (), YOUNG), (LAST,))


def test_files_by_other_columns_of_partition_by_are_named_as_such(place: Work) -> None:
    work = place
    work.run(1)
    (old,) = [name for name in work.lake.names() if "/store=0/" in name]
    moved = old.replace("/store=0/", "/store=0/day=2/")
    work.lake.put(moved, work.lake.get(old))
    with pytest.raises(
        WriteRefused,
        match=r"has store=0/day=2/run1\.save.*, which run run1 has published by other columns of partition_by; "
        r"partition store=0 can only .* choose on_new_run='replace', or another folder",
    ):
        work.run(3, "overwrite")
    assert moved in work.lake.names()


def test_what_readers_that_list_would_read_is_looked_at(work: Work) -> None:
    """Partitions of a column that begins with an underscore, and folders behind links; not what a disk keeps at its root."""
    work.anew()
    assert isinstance(work.lake, FolderLake)
    orders = work.lake.folder / "orders"
    (orders / "lost+found").mkdir(parents=True)
    (orders / "lost+found" / "#12").touch()
    (orders / "_region=eu").mkdir()
    (orders / "_region=eu" / "part-0.parquet").touch()
    with pytest.raises(WriteRefused, match=r"is not empty \(_region=eu/part-0\.parquet\)"):
        work.run(2, "error")
    shutil.rmtree(orders / "_region=eu")
    (work.lake.folder / "elsewhere").mkdir()
    (orders / "store=7").symlink_to(work.lake.folder / "elsewhere")
    with pytest.raises(WriteRefused, match=r"has store=7, which no run of this folder"):
        work.run(2, "replace")
    (orders / "store=7").unlink()
    work.run(2, "error")


def test_a_damaged_receipt_is_named(place: Work) -> None:
    work = place
    work.run(1)
    work.run(3, "overwrite")
    receipt = next(name for name in work.lake.names() if name.startswith("orders/_logio/run3."))
    work.lake.put(receipt, b"{")
    with pytest.raises(
        ConfigurationError, match=rf"{receipt} is no receipt of a DatasetWriter.*restore it from a copy"
    ):
        work.run(2)


def test_nothing_is_put_back_where_a_newer_run_overwrites(place: Work) -> None:
    """Which partitions would get the records is not known before: put back, they might park the run for good."""
    work = place
    work.run(1)
    work.run(2, "overwrite")
    writer = DatasetWriter("lake", "orders", partition_by=("store",))
    check_not_replaced(writer, work.lake.url, WriterIdentity("run3", 1, 3.0))
    with pytest.raises(WriteRefused, match=r"run run2, a newer one, overwrites partitions.*run run1 must not write"):
        check_not_replaced(writer, work.lake.url, WriterIdentity("run1", 1, 1.0))


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_what_is_seen_before_its_record_does_not_count_and_is_not_removed(place: Work, mode: str) -> None:
    """A file system that shows names late may show a younger run's files, and not yet that it is younger."""
    work = place
    work.run(1)
    work.run(3)
    record = next(name for name in work.lake.names() if name.endswith(".run3.joins"))
    work.lake.remove(record)
    assert work.lake.counted() == after("append", (), OLD)
    with pytest.raises(WriteRefused, match=r"has store=[01]/run3\.save.*, which no run of this folder has published"):
        work.run(2, mode)
    assert work.lake.listed() == after("append", (), (*OLD, LAST))
    work.lake.put(record)
    with pytest.raises(WriteRefused, match="later than this run run2"):
        work.run(2, mode)
    assert work.lake.counted() == work.lake.listed() == after("append", (), (*OLD, LAST))


def test_a_reader_does_not_take_a_folder_for_empty_whose_new_record_is_not_shown_yet(place: Work) -> None:
    """A file system that shows names late shows the receipts of a run that replaces, and no longer those it has replaced."""
    work = place
    work.run(1)
    work.run(2, "replace")
    record = next(name for name in work.lake.names() if name.endswith(".run2.replaces"))
    work.lake.remove(record)
    with pytest.raises(
        OSError, match=r"orders: run run2 replaces what is there, and its record is not shown.*list again"
    ):
        work.lake.counted()
    work.lake.put(record)
    assert work.lake.counted() == after("append", (), YOUNG)


def test_a_reader_sees_no_receipt_without_those_before_it(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of many names comes in pages, and between two of them a driver continues."""
    work.anew()
    work.run(1)
    first, *others = sorted(LocalFiles(f"{work.lake.root}/orders").names("_logio"))
    names, listings = LocalFiles.names, iter([["first page ends"], None])

    def in_pages(self: LocalFiles, folder: str) -> list[str]:
        found = names(self, folder)
        if folder != "_logio" or next(listings, None) is None:
            return found
        work.run(3)
        later = [name for name in names(self, folder) if name not in found]
        return [name for name in found if name != first] + later  # the first name had no place in a page yet

    monkeypatch.setattr(LocalFiles, "names", in_pages)
    assert others and work.lake.counted() == after("append", after("append", (), OLD), (LAST,))


def test_a_fresh_run_shuts_out_the_one_that_was_given_up_and_no_other(place: Work) -> None:
    """Another run that appends, and was started before it, continues."""
    work = place
    healthy = work.driver(1)
    first, second = work.actions(1)
    healthy.publish(first)
    work.run(3)
    fresh = work.driver(2)
    fresh.publish(fresh.action(1, YOUNG[0]), given_up=("run3",))
    healthy.publish(second)
    expected = after("append", (), (*OLD, (*LAST, *YOUNG[0])))
    assert work.lake.counted() == work.lake.listed() == expected, "it appends, whichever was started first"
    with pytest.raises(WriteRefused, match=r"run run3 must not write to it any more$"):
        work.run(3, token=2)
    writer = DatasetWriter("lake", "orders")
    for run in (1, 2):
        check_not_replaced(writer, work.lake.url, WriterIdentity(f"run{run}", 1, float(run)))
    with pytest.raises(WriteRefused, match="run run3 must not write"):
        check_not_replaced(writer, work.lake.url, WriterIdentity("run3", 1, 3.0))


@pytest.mark.parametrize("mode", MODES)
def test_a_fresh_run_that_dies_anywhere_has_shut_out_the_other_before_its_first_file(work: Work, mode: str) -> None:
    def dies(at: int) -> bool:
        work.anew()
        work.run(1)
        with work.standing(at) as steps, suppress(Died):
            work.run(2, mode, given_up=("run1",))
        if set(work.lake.counted()) - set(after("append", (), OLD)):
            with pytest.raises(WriteRefused, match="run run1 must not write"):
                work.run(1, token=2)
        work.run(2, mode, token=2, given_up=("run1",))
        with pytest.raises(WriteRefused, match="run run1 must not write"):
            work.run(1, token=3)
        assert work.lake.counted() == after(mode, after("append", (), OLD), YOUNG), f"after a death before call {at}"
        return steps.passed >= at

    assert every_step(dies, work.stride) > 10


def test_what_an_earlier_version_has_left_of_a_fresh_run_shuts_out_no_healthy_one(place: Work) -> None:
    """It closed the folder to all older runs, though it joined them."""
    work = place
    healthy, (first, second) = work.driver(1), work.actions(1)
    healthy.publish(first)
    work.run(2)
    work.lake.put(f"orders/_logio/runs/{RunRecord(Age.of(Owner('run2', 2.0)), Effect.CLOSES).name}")
    healthy.publish(second)
    assert work.lake.counted() == after("append", (), (*OLD, *YOUNG))
    work.run(3, "replace")
    with pytest.raises(WriteRefused, match="run run1 must not write"):
        work.run(1, token=2)


def test_a_run_whose_partition_was_overwritten_is_begun_anew_as_the_message_says(place: Work) -> None:
    """Its rows in other partitions count still, so that a fresh run alone would append them twice."""
    work = place
    first, second = work.actions(1)
    work.driver(1).publish(first)
    overwriting = work.driver(2, "overwrite")
    overwriting.publish(overwriting.action(12, [(11, 1)]))
    with pytest.raises(WriteRefused, match=r"the files whose names begin with run1, in the folders and in _logio$"):
        work.driver(1).publish(second)
    work.lake.remove(*(name for name in work.lake.names() if name.rpartition("/")[2].startswith("run1.")))
    fresh = work.driver(3)
    fresh.publish(*(fresh.action(number, rows) for number, rows in enumerate(OLD, 12)), given_up=("run1",))
    assert work.lake.counted() == work.lake.listed() == after("append", [(11, 1)], OLD)


# --- clocks that differ: what was started later, by its clock, may have been published first --------------------------


@pytest.mark.parametrize(
    ("younger", "mode"), [("append", "replace"), ("append", "overwrite"), ("overwrite", "replace")]
)
def test_files_of_a_run_that_was_started_later_are_not_left_beside_those_of_one_that_replaces(
    place: Work, mode: str, younger: str
) -> None:
    work = place
    work.run(3, younger)
    before = work.lake.contents()
    with pytest.raises(
        WriteRefused, match=r"of run run3, started 1970-01-01 00:00:03.*later than this run run2"
    ) as refused:
        work.run(2, mode)
    assert work.lake.counted() == work.lake.listed() == after("append", (), (LAST,))
    assert {name: data for name, data in work.lake.contents().items() if ".run2." not in name} == before
    assert "move away the files of that run, whose names begin with run3, there and in _logio" in str(refused.value)
    work.lake.remove(*(name for name in work.lake.names() if name.rpartition("/")[2].startswith("run3.")))
    work.run(2, mode)
    work.run(3, younger, token=2)
    expected = after(younger, after(mode, (), YOUNG), (LAST,))
    assert work.lake.counted() == work.lake.listed() == expected, "the later one comes second"
    if younger == "append":
        work.run(2, mode, token=2)
        assert work.lake.counted() == work.lake.listed() == expected, "nor is the other one done twice"


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_a_run_that_replaces_beside_one_that_was_started_later_is_first_or_refused(work: Work, mode: str) -> None:
    """It stands still anywhere, and the later one appends."""
    outcomes = set()

    def stands(at: int) -> bool:
        work.anew()
        work.run(1)
        with work.standing(at, lambda: work.run(3)) as steps:
            try:
                work.run(2, mode)
                is_done = True
            except WriteRefused:
                is_done = False
        if steps.passed < at:
            return False
        before = after("append", (), OLD)
        states = [after(mode, before, YOUNG[:count]) for count in range(len(YOUNG) + 1)]
        possible = [states[-1]] if is_done else [before, *states]
        assert work.lake.counted() in [after("append", state, (LAST,)) for state in possible], f"stood before call {at}"
        outcomes.add(is_done)
        return True

    every_step(stands, work.stride)
    assert outcomes == {True, False}
