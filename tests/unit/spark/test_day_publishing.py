"""A day in a lake is replaced by one closing receipt, wherever drivers die, stand still, or run beside others.

A driver is stopped before each of its calls to file system or object store. Readers by receipts see the old day or the new
one; what they see is compared with values written here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import published_files
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.folder_days import DAYS, RECEIPTS, SIGN
from airflow_logio.dataflow.writers.published_folder import RUNS, is_published
from airflow_logio.errors import ConfigurationError, LogInconsistent, WriteRefused
from airflow_logio.spark.published_places import ClosingNames
from airflow_logio.systems.payloads import Payloads
from tests.support.file_steps import Died, every_step, standing, standing_at_objects
from tests.support.lakes import BucketLake, FolderLake, Lake, reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import DayPublisher, FillingPublisher, Publisher, Row

OTHERS = [(5, 0), (6, 2)]
"""Rows of other days, and that day as it was, which a run that appends has published."""
BEFORE = [(1, 1), (2, 1)]
DAY = "orders/store=1"


def rows(run: str) -> list[Row]:
    """What a run has for the day, in two write actions."""
    number = int(run[1:].strip("'")) * 100 + ord(run[0])
    return [(number, 1), (number + 1, 1), (number + 2, 1)]


class Work:
    """Lakes that are made anew for each place to stand at; the datasets of each run are made once, as for the log."""

    def __init__(self, root: Path, lake: Lake, stride: int = 1) -> None:
        self.payloads = Payloads(str(root / "payloads"))
        self.lake = lake
        self.stride = stride
        self.standing = standing if isinstance(lake, FolderLake) else standing_at_objects
        self._made: dict[str, Sequence[WriteAction]] = {}
        first = Publisher(lake.url, self.payloads, 1)
        self.before = first.action(2, BEFORE, OTHERS)

    def anew(self) -> None:
        """With the day as a run that appends has published it, and two others."""
        self.empty()
        Publisher(self.lake.url, self.payloads, 1).publish(self.before)

    def empty(self) -> None:
        self.lake.remove(*self.lake.names())

    def driver(self, run: str, token: int = 1, **settings: Any) -> DayPublisher:
        """Of the run with that log and ordinal, as ``a45``; ``a'45`` is another run of the same line."""
        log = run.rstrip("0123456789")
        return DayPublisher(self.lake.url, self.payloads, int(run.removeprefix(log)), token, log=log, **settings)

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

    def fill(self, run: str, token: int = 1, **settings: Any) -> None:
        """As `run`, for one that fills its day at once."""
        self.filler(run, token, **settings).fill(*self.actions(run, token))

    def filler(self, run: str, token: int = 1, **settings: Any) -> FillingPublisher:
        log = run.rstrip("0123456789")
        return FillingPublisher(self.lake.url, self.payloads, int(run.removeprefix(log)), token, log=log, **settings)

    def counted(self) -> list[Row]:
        """The rows of the day that count; the other days are as they were."""
        found = self.lake.counted()
        assert [row for row in found if row[1] != 1] == OTHERS
        return [row for row in found if row[1] == 1]

    def listed(self) -> list[Row]:
        return [row for row in self.lake.listed() if row[1] == 1]


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
        yield Work(tmp_path_factory.mktemp("far"), BucketLake(objects, bucket), stride=2)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def work(request: pytest.FixtureRequest) -> Work:
    """Each of them, with a day that was there before."""
    found: Work = request.getfixturevalue("near" if request.param == "folder" else "far")
    found.anew()
    return found


def test_a_day_that_was_there_is_replaced_and_then_replaced_again(work: Work) -> None:
    """Files are removed; claims and receipts stay. No record says when a run of a day was started."""
    assert work.counted() == work.listed() == BEFORE
    work.run("a4")
    assert work.counted() == work.listed() == rows("a4")
    work.run("a5")
    assert work.counted() == work.listed() == rows("a5")
    names = work.lake.names()
    assert len([name for name in names if f"{DAYS}/store=1/" in name]) == 4 and f"orders/{RECEIPTS}/{SIGN}" in names
    assert [name for name in names if f"/{RUNS}/" in name] == [f"orders/{RUNS}/00000000001000000.run1.joins"]
    assert {(one.run_uid, one.operator, one.number) for one in published_files(f"{work.lake.url}/{DAY}")} == {
        ("a5", "save", 2),
        ("a5", "save", 3),
    }


def test_until_the_receipt_the_old_day_counts(work: Work) -> None:
    work.driver("a4").open_day()
    assert work.counted() == work.listed() == BEFORE


def test_dying_anywhere_leaves_the_old_day_or_the_new_one(work: Work) -> None:
    """Before, between and after the links, around the receipt, within the clear: the next driver completes it."""
    seen: list[list[Row]] = []

    def dies(at: int) -> bool:
        work.anew()
        with work.standing(at) as steps, suppress(Died):
            work.run("a4")
        found = work.counted()
        assert found in (BEFORE, rows("a4")), f"before call {at}"
        assert not seen or found >= seen[-1] or work.stride > 1, "never back"
        seen.append(found)
        work.run("a4", token=2)
        assert work.counted() == work.listed() == rows("a4"), f"after a death before call {at}"
        assert not [name for name in work.lake.names() if "/." in name]
        return steps.passed >= at

    assert every_step(dies, work.stride) > 20
    assert seen[0] == BEFORE and seen[-1] == rows("a4")


def test_a_zombie_of_the_same_run_changes_nothing(work: Work) -> None:
    """It stands still anywhere; its successor does everything, and a younger run as well; then it wakes up."""

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
        work.run("a6")
        assert work.counted() == work.listed() == rows("a6"), "what it has left is removed by the next run"
        return True

    assert every_step(stands, work.stride) > 20


def test_a_zombie_of_a_replaced_run_brings_nothing_back(work: Work) -> None:
    """Also between its look and its receipt, which then comes late and does not count."""
    ends: set[str] = set()

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, lambda: work.run("a5")) as steps:
            try:
                work.run("a4")
                ends.add("done")
            except WriteRefused as error:
                assert "belongs to run a5, a younger one of this pipeline (ordinal 5), and run a4" in str(error)
                ends.add("refused")
        if steps.passed < at:
            return False
        assert work.counted() == rows("a5"), f"woken up before call {at}"
        work.run("a6")
        assert work.counted() == work.listed() == rows("a6")
        return True

    assert every_step(stands, work.stride) > 20
    assert ends == {"done", "refused"} or work.stride > 1


def test_a_younger_claim_stops_the_older_run_and_takes_nothing_from_it(work: Work) -> None:
    """Its files do not count; they stay until the younger one has closed, since another driver of it may be about to."""
    work.driver("a4").open_day()
    work.driver("a5").open_day()
    with pytest.raises(WriteRefused, match=r"run a5, a younger one of this pipeline .* --above 5"):
        work.driver("a4").close_day(*work.actions("a4"))
    assert work.counted() == BEFORE
    with pytest.raises(WriteRefused):
        work.driver("a3").open_day()
    work.driver("a5").close_day(*work.actions("a5"))
    assert work.counted() == work.listed() == rows("a5")
    assert not [name for name in work.lake.names() if ".a3." in name], "a claim that was refused is withdrawn"


def test_a_retry_is_refused_once_a_younger_run_has_claimed_the_day(work: Work) -> None:
    """Not before, not behind its own closing; nothing is changed by asking."""
    run, names = work.driver("a4"), work.lake.names()
    run.check_retry()
    assert work.lake.names() == names
    run.open_day()
    work.driver("a5").open_day()
    with pytest.raises(WriteRefused, match="belongs to run a5, a younger one of this pipeline"):
        run.check_retry()
    with pytest.raises(WriteRefused, match="belongs to run"):
        work.driver("b9").check_retry()
    work.driver("b9", takes_over=True).check_retry()
    work.driver("a5").close_day(*work.actions("a5"))
    work.driver("a6").open_day()
    work.driver("a5").check_retry()
    assert work.counted() == rows("a5")


def test_a_run_that_is_refused_takes_no_file_from_its_own_zombie(work: Work) -> None:
    """It stands still anywhere; a younger run claims the day, and its next driver is refused. Then it wakes up."""

    def meanwhile() -> None:
        work.driver("a5").open_day()
        with suppress(WriteRefused):
            work.run("a4", token=2)

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, meanwhile) as steps, suppress(WriteRefused):
            work.run("a4")
        if steps.passed < at:
            return False
        assert work.counted() in (BEFORE, rows("a4")), f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 20


def test_files_of_a_run_are_removed_though_a_zombie_of_its_opening_is_refused(work: Work) -> None:
    """It stands still anywhere; the next driver puts files, and both learn that a younger run has claimed the day."""

    def meanwhile() -> None:
        work.driver("a4", token=2).open_day()
        with suppress(WriteRefused):
            work.driver("a4", token=2).close_day(*work.actions("a4", token=2), then=work.driver("a5").open_day)

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, meanwhile) as steps, suppress(WriteRefused):
            work.driver("a4").open_day()
        if steps.passed < at:
            return False
        work.driver("a5").close_day(*work.actions("a5"))
        assert work.counted() == work.listed() == rows("a5"), f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 5


def test_two_runs_of_one_ordinal_are_never_both_accepted(work: Work) -> None:
    """A log that was restored gives an ordinal again."""
    work.run("a4")
    with pytest.raises(WriteRefused, match=r"run a4 has the same ordinal 4 as run a'4: .* --above 4"):
        work.run("a'4")
    with pytest.raises(WriteRefused, match="same ordinal"):
        work.run("a'4", takes_over=True)
    assert work.counted() == work.listed() == rows("a4")
    work.run("a'5")
    assert work.counted() == work.listed() == rows("a'5")


def test_another_log_replaces_a_day_only_if_a_person_says_so(work: Work) -> None:
    """It leaves nothing that would keep the first one away. After a takeover it is the other way round."""
    work.run("a4")
    with pytest.raises(WriteRefused, match=r"belongs to run a4 of another pipeline or another log.*--take-over"):
        work.run("b1")
    work.run("a5")
    work.run("b1", takes_over=True)
    assert work.counted() == work.listed() == rows("b1")
    work.driver("a5", token=2).close_day(*work.actions("a5"))  # it has been done, and was replaced since
    for step in (work.driver("a6").open_day, lambda: work.driver("a6").close_day(*work.actions("a6"))):
        with pytest.raises(WriteRefused, match="b1 of another pipeline or another log"):
            step()
    assert work.counted() == work.listed() == rows("b1")
    work.run("b2")
    assert work.counted() == work.listed() == rows("b2"), "its next run needs no word"
    work.run("a7", takes_over=True)
    work.run("a8")
    assert work.counted() == work.listed() == rows("a8")


def test_of_two_logs_that_claim_a_day_at_once_one_has_it(work: Work) -> None:
    """One stands still anywhere while the other one does everything, and what they have not done is tried again."""
    opened: set[str] = set()

    def tried(run: str, token: int) -> None:
        with suppress(WriteRefused):
            if run not in opened:
                work.driver(run, token).open_day()
            opened.add(run)
            work.driver(run, token).close_day(*work.actions(run, token))

    def stands(at: int) -> bool:
        work.anew()
        opened.clear()
        with work.standing(at, lambda: tried("b1", 1)) as steps:
            tried("a4", 1)
        if steps.passed < at:
            return False
        tried("b1", 2)
        tried("a4", 2)
        found = work.counted()
        assert found == work.listed() and found in (rows("a4"), rows("b1")), f"woken up before call {at}"
        later = "a5" if found == rows("a4") else "b2"
        work.run(later)
        assert work.counted() == work.listed() == rows(later), "the other one has left no claim"
        return True

    assert every_step(stands, work.stride) > 20


def test_a_zombie_of_a_line_that_was_taken_over_never_counts(work: Work) -> None:
    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, lambda: work.run("b1", takes_over=True)) as steps, suppress(WriteRefused):
            work.run("a4")
        if steps.passed < at:
            return False
        assert work.counted() == rows("b1"), f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 20


@pytest.mark.parametrize("fills", [False, True])
def test_a_word_of_a_run_that_was_given_up_is_void_when_the_next_has_begun(work: Work, fills: bool) -> None:
    """Its driver opens late, and another line has taken the day back meanwhile."""
    work.anew()
    for run in ("b6", "a2", "b7"):
        work.run(run, takes_over=True)
    with pytest.raises(WriteRefused, match="was taken over by run b7"):
        (work.fill if fills else work.run)("a1", takes_over=True)
    assert work.counted() == work.listed() == rows("b7")
    work.run("b8")
    assert work.counted() == work.listed() == rows("b8"), "it has claimed nothing"


@pytest.mark.parametrize("both_claim_first", [False, True])
def test_two_take_overs_at_once_end_with_one_day_or_are_refused(work: Work, both_claim_first: bool) -> None:
    """Each stands still anywhere while the other one does everything. If both have claimed the day before, they may meet
    between look and receipt: then it is said, with the command. A third one mends it, and so does the next run of one."""
    doubts = 0

    def stands(at: int) -> bool:
        nonlocal doubts
        work.anew()
        work.run("a4")
        one, other = (work.driver(run, takes_over=True) for run in ("b1", "c1"))
        if both_claim_first:
            one.open_day()
            other.open_day()

        def meanwhile() -> None:
            if not both_claim_first:
                other.open_day()
            other.close_day(*work.actions("c1"))

        with work.standing(at, meanwhile) as steps, suppress(WriteRefused):
            if not both_claim_first:
                one.open_day()
            one.close_day(*work.actions("b1"))
        if steps.passed < at:
            return False
        try:
            assert work.counted() in (rows("b1"), rows("c1")), f"woken up before call {at}"
        except ConfigurationError as error:
            assert "run b1" in str(error) and "run c1" in str(error) and "--partition 1 --take-over`" in str(error)
            doubts += 1
        first, second = ("d1", "d2") if doubts != 1 else ("b2", "b3")
        work.run(first, takes_over=first == "d1")
        assert work.counted() == rows(first)
        work.run(second)
        assert work.counted() == work.listed() == rows(second)
        return True

    assert every_step(stands, work.stride) > 10
    assert (doubts <= 4 and bool(doubts) == both_claim_first) or work.stride > 1, "only between look and receipt"


def test_a_day_with_rows_is_not_replaced_by_nothing(work: Work) -> None:
    """Neither one that was there before, nor one that was closed; a person can say so for one run."""
    for before, run in ((BEFORE, "a4"), (rows("a5"), "a6")):
        work.driver(run).open_day()
        with pytest.raises(WriteRefused, match=f"run {run} has none to put in their place.*--empty`"):
            work.driver(run).close_day()
        assert work.counted() == work.listed() == before
        if run == "a4":
            work.run("a5")
    work.driver("a6", word=True).close_day()
    assert work.counted() == work.listed() == []
    work.run("a7")
    work.driver("a8", may_be_empty=True).open_day()
    work.driver("a8", may_be_empty=True).close_day()
    assert work.counted() == work.listed() == []
    work.driver("a9").open_day()
    work.driver("a9").close_day()
    assert work.counted() == work.listed() == [], "an empty day may stay empty"


@pytest.mark.parametrize("zombie", ["a4", "b4"])
def test_rows_that_come_before_the_last_look_are_not_replaced_by_nothing(work: Work, zombie: str) -> None:
    """Of a driver that stood still between its last look and its receipt, while a younger run, or one that takes its line
    over, found no rows."""
    work.empty()
    work.run(zombie)
    receipt = next(name for name in work.lake.names() if DAYS in name and name.endswith(".json"))
    said = work.lake.get(receipt)
    work.lake.remove(receipt)
    driver = work.driver("a6", takes_over=True)
    driver.open_day()
    with driver.connected() as (_, claim):
        claim.check_files(has_records=False)
        work.lake.put(receipt, said)
        with pytest.raises(WriteRefused, match=r"run a6 has none to put in their place.*--empty`"):
            claim.put_receipt(ClosingNames("a6", "save", 2, 1, claim.mine), (), has_records=False)
    assert [row for row in work.lake.counted() if row[1] == 1] == rows(zombie)
    work.driver("a6", takes_over=True, word=True).close_day()
    assert [row for row in work.lake.counted() if row[1] == 1] == []


def test_a_file_that_no_run_has_published_is_refused_in_that_day_only(work: Work) -> None:
    """When the run begins, and when it closes; then nothing of the run is left there, or nothing that counts."""
    there = work.lake.names()
    work.lake.put(f"{DAY}/by_hand.parquet", b"")
    with pytest.raises(WriteRefused, match=r"by_hand\.parquet, which no run has published"):
        work.driver("a4").open_day()
    assert work.lake.names() == sorted([*there, f"{DAY}/by_hand.parquet"])
    work.lake.remove(f"{DAY}/by_hand.parquet")
    work.driver("a4").open_day()
    work.lake.put(f"{DAY}/by_hand.parquet", b"")
    with pytest.raises(WriteRefused, match=r"by_hand\.parquet, which no run has published"):
        work.driver("a4").close_day(*work.actions("a4"))
    assert work.counted() == BEFORE
    work.lake.remove(f"{DAY}/by_hand.parquet")
    work.run("a4", token=2)
    assert work.counted() == work.listed() == rows("a4")


def test_a_file_by_hand_in_another_day_is_no_matter(work: Work) -> None:
    work.lake.put("orders/store=2/by_hand.parquet", b"")
    work.run("a4")
    assert work.counted() == rows("a4")


def test_an_audit_that_refuses_leaves_the_old_day_and_no_file(work: Work) -> None:
    """It is asked again; where nothing is held, or the day is replaced already, it is not asked."""
    driver, there = work.driver("a4", ask=lambda: "1 row: (id=452)"), work.lake.names()
    driver.open_day()
    with pytest.raises(
        WriteRefused, match=r"store=1 of folder .*audit 'asked' refuses the rows of run a4: 1 row: \(id=4"
    ):
        driver.close_day(*work.actions("a4"))
    assert work.counted() == work.listed() == BEFORE
    assert [name for name in work.lake.names() if name not in there] == [
        f"orders/{DAYS}/store=1/{driver.mine.claim}",
        f"orders/{RECEIPTS}/{SIGN}",
    ]
    work.driver("a4", token=2, ask=str).close_day(*work.actions("a4", 2))
    assert work.counted() == work.listed() == rows("a4")
    driver.close_day(*work.actions("a4"))
    work.run("a5")
    empty = work.driver("a6", ask=lambda: "asked", may_be_empty=True)
    empty.open_day()
    empty.close_day()
    assert work.counted() == work.listed() == []


def test_a_zombie_in_its_audit_replaces_nothing(work: Work) -> None:
    """Meanwhile its successor has closed the day, or a younger run has, or another log."""
    for other, settings in (("a4", {"token": 2}), ("a5", {}), ("b1", {"takes_over": True})):
        work.anew()

        def meanwhile(other: str = other, settings: dict[str, Any] = settings) -> str:
            work.run(other, **settings)
            return ""

        zombie = work.driver("a4", ask=meanwhile)
        zombie.open_day()
        with suppress(WriteRefused):
            zombie.close_day(*work.actions("a4"))
        assert work.counted() == work.listed() == rows(other)


def test_late_names_remove_nothing(work: Work) -> None:
    """NFS may show a file before the claim of its run: it stays, and does not count, until the claim is seen."""
    work.run("a4")
    hidden = work.driver("a5")
    hidden.open_day()
    claim = next(name for name in work.lake.names() if name.endswith("a5.claim"))
    work.lake.remove(claim)
    with hidden.connected() as (target, day):
        target._put(day, work.actions("a5")[0])
    work.run("a6")
    assert work.counted() == rows("a6") and work.listed() == sorted([*rows("a6"), *rows("a5")[:1]])
    work.lake.put(claim)
    work.run("a7")
    assert work.counted() == work.listed() == rows("a7")


def test_records_of_other_days_are_refused_with_their_count(work: Work) -> None:
    driver = work.driver("a4")
    driver.open_day()
    with pytest.raises(WriteRefused, match=r"owns store=1 only.*1 of store=0, 1 of store=2"):
        driver.close_day(replace(work.before, run_uid="a4"))
    assert work.counted() == work.listed() == BEFORE


def test_an_action_is_never_published_outside_its_closing(work: Work) -> None:
    with work.driver("a4").connected() as (target, claim), pytest.raises(LogInconsistent, match="write action 2"):
        target.write_group(claim, work.actions("a4")[:1])


@pytest.mark.parametrize("mode", ["append", "replace", "error", "overwrite"])
def test_other_writers_of_the_folder_are_refused_wherever_they_stand(near: Work, mode: str) -> None:
    """Before their files and before their receipt; what they had published by then counts in other days."""
    work, refused = near, 0

    def stands(at: int) -> bool:
        nonlocal refused
        work.empty()
        with work.standing(at, lambda: work.run("a4")) as steps:
            try:
                other = Publisher(work.lake.url, work.payloads, 7, mode)
                other.publish(*other.opening(), action)
            except WriteRefused as error:
                assert "has days that pipelines own" in str(error) or "/a4.save." in str(error)
                refused += 1
        if steps.passed < at:
            return False
        found = work.lake.counted()
        assert [row for row in found if row[1] == 1] == rows("a4"), f"woken up before call {at}"
        assert [row for row in found if row[1] != 1] in ([], OTHERS)
        return True

    action = replace(work.before, run_uid="run7")
    assert every_step(stands) > 20 and refused > 10
    work.run("a5")
    other = Publisher(work.lake.url, work.payloads, 8, mode)
    with pytest.raises(WriteRefused, match=rf"has days that pipelines own \(a writer with by=\), and {mode!r}"):
        other.publish(*other.opening(), action)


# --- at once: the opening hides the old day, and each action appears as it comes -----------------------------------------


def test_a_day_that_is_filled_at_once_loses_the_old_rows_first(work: Work) -> None:
    """Then it has each action, whole or not at all; before and behind it, runs may close the day."""
    work.filler("a4").fill()
    assert work.counted() == work.listed() == []
    assert not is_published(f"{work.lake.url}/{DAY}"), "it is not known to be empty"
    work.filler("a4").fill(*work.actions("a4")[:1])
    assert work.counted() == work.listed() == rows("a4")[:1] and is_published(f"{work.lake.url}/{DAY}")
    work.fill("a4", token=2)
    assert work.counted() == work.listed() == rows("a4")
    found = published_files(f"{work.lake.url}/{DAY}")
    assert [(one.run_uid, one.number) for one in found] == [("a4", 2), ("a4", 3)]
    work.run("a5")
    assert work.counted() == work.listed() == rows("a5")
    work.fill("a6")
    assert work.counted() == work.listed() == rows("a6")


def test_dying_anywhere_while_a_day_is_filled_leaves_a_part_of_it(work: Work) -> None:
    """The old day, or nothing, or the first action, or both; the next driver completes it."""
    seen: list[list[Row]] = []

    def dies(at: int) -> bool:
        work.anew()
        with work.standing(at) as steps, suppress(Died):
            work.fill("a4")
        found = work.counted()
        assert found in (BEFORE, [], rows("a4")[:1], rows("a4")), f"before call {at}"
        seen.append(found)
        work.fill("a4", token=2)
        assert work.counted() == work.listed() == rows("a4"), f"after a death before call {at}"
        assert not [name for name in work.lake.names() if "/." in name]
        return steps.passed >= at

    assert every_step(dies, work.stride) > 20
    parts = [found for before, found in zip([[], *seen], seen, strict=False) if found != before]
    assert parts == [BEFORE, [], rows("a4")[:1], rows("a4")] or work.stride > 1, "never back"


@pytest.mark.parametrize(("older", "younger"), [("run", "fill"), ("fill", "run"), ("fill", "fill")])
def test_of_runs_that_fill_and_runs_that_close_the_younger_one_has_the_day(
    work: Work, older: str, younger: str
) -> None:
    """The older one stands still anywhere; when it wakes up, nothing of it counts, whichever way either writes."""

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, lambda: getattr(work, younger)("a5")) as steps, suppress(WriteRefused):
            getattr(work, older)("a4")
        if steps.passed < at:
            return False
        assert work.counted() == rows("a5"), f"woken up before call {at}"
        work.run("a6")
        assert work.counted() == work.listed() == rows("a6")
        return True

    assert every_step(stands, 2 * work.stride) > 5


def test_a_zombie_that_fills_its_day_changes_nothing(work: Work) -> None:
    def meanwhile() -> None:
        work.fill("a4", token=2)
        assert work.counted() == rows("a4")

    def stands(at: int) -> bool:
        work.anew()
        with work.standing(at, meanwhile) as steps, suppress(ConfigurationError, FileNotFoundError):
            work.fill("a4")
        if steps.passed < at:
            return False
        assert work.counted() == work.listed() == rows("a4"), f"woken up before call {at}"
        return True

    assert every_step(stands, work.stride) > 20


def test_a_day_that_is_filled_is_taken_over_only_by_a_persons_word(work: Work) -> None:
    work.fill("a4")
    with pytest.raises(WriteRefused, match=r"belongs to run a4 of another pipeline or another log.*--take-over"):
        work.fill("b1")
    assert work.counted() == work.listed() == rows("a4")
    work.fill("b1", takes_over=True)
    assert work.counted() == work.listed() == rows("b1")
    later = work.filler("a5")
    with pytest.raises(WriteRefused, match="b1 of another pipeline or another log"):
        later.fill(*work.actions("a5"))
    with pytest.raises(WriteRefused, match="was taken over by run b1"):
        work.filler("a4", token=2).check_retry()
    work.filler("b1").check_retry()


def test_equal_ordinals_never_fill_one_day(work: Work) -> None:
    work.fill("a4")
    with pytest.raises(WriteRefused, match=r"run a4 has the same ordinal 4"):
        work.fill("a'4")
    assert work.counted() == work.listed() == rows("a4")
