"""Which run's files count in a day of a lake: whatever names appear, in whichever order, and however late they are shown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio import published_files
from airflow_logio.dataflow.writers.folder_days import (
    DAYS,
    RECEIPTS,
    SIGN,
    DayReceipt,
    DayRun,
    FolderDay,
    day_of,
    day_receipt,
    day_run_of,
    days_of,
    line_of,
)
from airflow_logio.dataflow.writers.folder_files import FolderFiles, LocalFiles
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.folder_rules import Age, Effect, NamedFile, RunRecord
from tests.support import reader_before_days

DAY = "day=2026-03-01"
A, B, C = (line_of(log, "clicks") for log in ("log a", "log b", "log c"))


def run(ordinal: int, line: str = A, twin: str = "") -> DayRun:
    return DayRun(ordinal, line, f"{'abc'[(A, B, C).index(line)]}{ordinal}{twin}")


def closed(by: DayRun, *hides: DayRun, files: int = 1, scope: str = DAY) -> DayReceipt:
    named = (
        NamedFile(f"{scope}/{by.run_uid}.keep.{number:012d}.00000.parquet", 10, 1) for number in range(2, files + 2)
    )
    return DayReceipt(by, "keep", files + 2, scope, tuple(named), frozenset(hides))


def day(*receipts: DayReceipt, claims: Collection[DayRun] = ()) -> FolderDay:
    return FolderDay(DAY, frozenset({*claims, *(one.run for one in receipts)}), receipts)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_read_back_and_nothing_else_is_taken_for_one() -> None:
    one = run(45)
    assert one.claim == f"000000000045.{A}.a45.claim" and one.receipt("keep") == f"000000000045.{A}.a45.keep.json"
    assert day_run_of(one.claim) == day_run_of(one.receipt("keep")) == one
    assert sorted([run(9).claim, run(10).claim, run(100).claim]) == [run(n).claim for n in (9, 10, 100)]
    for name in (f".{one.receipt('keep')}.1.ff", f"{one.claim}.x.json", SIGN, "1.2.3.claim", f"45.{A}.a45.claim", ""):
        assert day_run_of(name) is None, name


def test_a_line_is_one_pipeline_of_one_log() -> None:
    assert len({line_of(log, name) for log in ("x", "y") for name in ("p", "q")}) == 4
    assert line_of("x", "p") == line_of("x", "p") and len(line_of("x", "p")) == 12


def test_a_receipt_is_read_back_and_a_damaged_one_is_named() -> None:
    one = closed(run(45), run(3, B), run(7, C), files=2)
    text = json.dumps(one.says()).encode()
    assert day_receipt("here", text) == one
    for damaged in (text[:-1], b"", b"[]", b'{"run": "a"}', text.replace(b'"hides"', b'"hid"')):
        with pytest.raises(ValueError, match="here is no closing receipt"):
            day_receipt("here", damaged)


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_the_greatest_ordinal_of_a_line_counts() -> None:
    assert day().live() is None and day(claims=[run(9)]).live() is None
    assert day(closed(run(45))).live() == closed(run(45))
    assert day(closed(run(9)), closed(run(10)), closed(run(2)), claims=[run(11)]).live() == closed(run(10))


def test_what_a_takeover_hides_never_counts_nor_what_is_older_in_its_line() -> None:
    """Whichever of its receipts comes later, and also when a third line has removed the receipt that hid it first."""
    over = closed(run(3, B), run(45))
    for late in (run(45), run(44), run(45, twin="x")):
        assert day(over, closed(late)).live() == over
    again = closed(run(46), *day(over, claims=[run(45)]).to_hide(run(46)))
    assert again.hides == {run(45), run(3, B)}
    assert day(over, again).live() == day(again, closed(run(2, B))).live() == again
    third = closed(run(1, C), *day(over).to_hide(run(1, C)))
    assert day(third, closed(run(45))).live() == day(third, over, closed(run(44))).live() == third


@pytest.mark.parametrize(
    "receipts",
    [
        (closed(run(45)), closed(run(3, B))),
        (closed(run(45)), closed(run(45, twin="x"))),
        (closed(run(45), run(3, B)), closed(run(3, B), run(45))),
        (closed(run(44)), closed(run(45)), closed(run(3, B), run(1, C))),
    ],
)
def test_two_that_do_not_replace_each_other_are_refused_by_name(receipts: tuple[DayReceipt, ...]) -> None:
    """Two lines, two runs of one ordinal, two that hide each other: nothing is removed for them."""
    with pytest.raises(ConfigurationError, match=f"{DAY} was closed by run .* and run .*logio again") as told:
        day(*receipts).live()
    assert all(one.run.run_uid in str(told.value) for one in receipts if one.run != run(44))
    with pytest.raises(ConfigurationError):
        day(*receipts).known_older()
    everything = closed(run(46), *day(*receipts).to_hide(run(46)))
    assert day(*receipts, everything).live() == everything, "a run that takes over mends it"


@pytest.mark.parametrize(
    ("found", "takes_over", "way"),
    [
        (day(claims=[run(44), run(45)]), False, None),
        (day(closed(run(45))), False, None),
        (day(claims=[run(46), run(47)]), False, run(47)),
        (day(closed(run(46))), True, run(46)),
        (day(claims=[run(45, twin="x")]), True, run(45, twin="x")),
        (day(claims=[run(1, B)]), False, run(1, B)),
        (day(closed(run(1, B))), True, None),
        (day(closed(run(44), run(1, B)), claims=[run(1, B)]), False, None),
        (day(closed(run(1, B), run(45))), True, run(1, B)),
        (day(closed(run(1, B), run(46))), True, run(1, B)),
        (day(closed(run(1, B), run(44))), True, None),
    ],
)
def test_what_is_in_the_way_of_run_45(found: FolderDay, takes_over: bool, way: DayRun | None) -> None:
    assert found.in_the_way(run(45), takes_over=takes_over) == way


def test_only_what_is_known_to_be_older_may_be_removed() -> None:
    claims = [run(44), run(46), run(1, B), run(9, C)]
    assert day(claims=claims).known_older() == set()
    assert day(closed(run(45)), claims=claims).known_older() == {run(44)}
    assert day(closed(run(45), run(2, B)), claims=claims).known_older() == {run(44), run(1, B), run(2, B)}
    assert day(closed(run(43)), closed(run(45))).known_older() == {run(43)}


# --- any order, any zombie, any lateness ------------------------------------------------------------------------------


@dataclass
class World:
    """One day, its runs as they close it, each step at any time; names may be shown late."""

    names: dict[str, DayReceipt | None] = field(default_factory=dict)
    """In the order in which they appeared; None for a claim."""
    removed: set[str] = field(default_factory=set)
    """Runs whose files were removed."""

    def shown(self, late: int = 0) -> FolderDay:
        names = list(self.names.items())[: len(self.names) - late]
        runs = frozenset(found for name, _ in names if (found := day_run_of(name)) is not None)
        return FolderDay(DAY, runs, tuple(receipt for _, receipt in names if receipt is not None))

    def driver(self, mine: DayRun, takes_over: bool) -> Generator[None, int, None]:
        """Before each step it is sent how many of the youngest names it does not see."""
        late = yield
        if self.shown(late).in_the_way(mine, takes_over=takes_over):
            return
        self.names.setdefault(mine.claim, None)
        late = yield
        if self.shown(late).in_the_way(mine, takes_over=takes_over):
            self.names.pop(mine.claim, None)
            return
        for _ in ("before its files", "before its receipt"):
            late = yield
            seen = self.shown(late)
            if seen.in_the_way(mine, takes_over=takes_over):
                return
        receipt = closed(mine, *seen.to_hide(mine))
        yield
        self.names[mine.receipt("keep")] = receipt
        late = yield
        try:
            older = self.shown(late).known_older()
        except ConfigurationError:
            return
        self.removed.update(one.run_uid for one in older)

    def check(self) -> DayReceipt | None:
        """The files of what counts are there; or it is in doubt."""
        try:
            live = self.shown().live()
        except ConfigurationError:
            return None
        assert live is None or live.run.run_uid not in self.removed
        return live


RUNS = [(run(44), False), (run(45), False), (run(46), True), (run(45, twin="x"), False), (run(3, B), False)]
RUNS += [(run(4, B), True), (run(1, C), True)]
STEPS = st.lists(st.tuples(st.integers(0, len(RUNS) - 1), st.sampled_from([0, 0, 0, 1, 2, 5])), max_size=60)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_what_counts_is_there_and_right_whoever_stands_still_and_sees_names_late(steps: list[tuple[int, int]]) -> None:
    """Runs of three lines, two of one ordinal; a run that began and never continued is a zombie."""
    world, drivers = World(), {}
    for number, late in steps:
        if number not in drivers:
            drivers[number] = world.driver(*RUNS[number])
            next(drivers[number])
        _send(drivers[number], min(late, len(world.names)))
        world.check()


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=40))
def test_runs_of_one_line_never_leave_a_day_in_doubt(ages: list[int], steps: list[int]) -> None:
    """And it never becomes that of an older run again."""
    world, drivers, live = World(), {}, 0
    for number in steps:
        if number not in drivers:
            drivers[number] = world.driver(run(ages[number] + 1), False)
            next(drivers[number])
        _send(drivers[number], 0)
        found = world.shown().live()
        assert (found is not None) == any(world.names.values())
        if found is not None:
            assert found.run.ordinal >= live and world.check() == found
            live = found.run.ordinal


def _send(driver: Generator[None, int, None], late: int) -> None:
    with suppress(StopIteration):
        driver.send(late)


class Paged(FolderFiles):
    """A folder that changes while it is listed: before each name that a listing comes to, something may happen."""

    def __init__(self, seed: int, changes: list[Callable[[dict[str, bytes]], object]]) -> None:
        self.where = "paged"
        self.content: dict[str, bytes] = {}
        self._random = random.Random(seed)
        self._changes = changes
        self.paths: list[str] = []
        """Of all names that will ever be there."""

    def change(self) -> None:
        if self._changes:
            self._changes.pop(0)(self.content)

    def names(self, folder: str) -> list[str]:
        found = []
        for path in self._random.sample(self.paths, len(self.paths)):
            if self._random.random() < 0.3:
                self.change()
            if path in self.content and path.startswith(f"{folder}/"):
                found.append(path.rpartition("/")[2])
        return found

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        yield below, [DAY], []
        yield f"{below}/{DAY}", [], self.names(f"{below}/{DAY}")

    def read(self, path: str) -> bytes:
        if self._random.random() < 0.3:
            self.change()
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def name(self, path: str) -> str:
        return path

    def above(self) -> FolderFiles:
        raise NotImplementedError

    def check(self) -> None: ...

    def is_there(self, path: str) -> bool:
        return path in self.content

    def links(self, folder: str, names: list[str]) -> list[str]:
        return []


@pytest.mark.parametrize("all_days", [False, True])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_listing_in_pages_shows_the_day_as_it_was_at_one_instant(all_days: bool, seed: int) -> None:
    """Runs close it while it is listed, some of them zombies, which are late: what is read was live at some time."""
    changes: list[Callable[[dict[str, bytes]], object]] = []
    files = Paged(seed, changes)

    def put(path: str, text: bytes) -> None:
        files.paths.append(path)
        changes.append(lambda content: content.__setitem__(path, text))

    ordinals = random.Random(seed).sample(range(1, 12), 11)
    for ordinal in ordinals:
        put(f"{DAYS}/{DAY}/{run(ordinal).claim}", b"")
        put(f"{DAYS}/{DAY}/{run(ordinal).receipt('keep')}", json.dumps(closed(run(ordinal)).says()).encode())
    files.change()
    while changes:
        first = _live(files.content)
        found = (days_of(files)[DAY] if all_days else day_of(files, DAY)).live()
        now = 0 if found is None else found.run.ordinal
        records = [max(ordinals[: count + 1]) for count in range(11)]
        assert now in {0, *records} and first <= now <= _live(files.content)
        files.change()


def _live(content: dict[str, bytes]) -> int:
    found = (day_run_of(Path(path).name) for path in content if path.endswith(".json"))
    return max((one.ordinal for one in found if one is not None), default=0)


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Before there were days, a run has appended to two of them."""
    folder = tmp_path / "clicks"
    age = Age.of(Owner("old", 1.0))
    put(folder / RECEIPTS / "runs" / RunRecord(age, Effect.JOINS).name)
    files = [
        {"path": f"{where}/old.keep.000000000002.00000.parquet", "bytes": 10, "records": 1}
        for where in (DAY, f"{DAY}/store=1", "day=2026-03-02", "day=2026-03-011")
    ]
    receipt = {"run": "old", "operator": "keep", "number": 2, "files": files}
    put(folder / RECEIPTS / "old.keep.000000000002.json", json.dumps(receipt))
    return folder


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def close(lake: Path, receipt: DayReceipt) -> None:
    put(lake / RECEIPTS / SIGN)
    where = lake / DAYS / receipt.scope
    put(where / receipt.run.claim)
    put(where / receipt.run.receipt(receipt.operator), json.dumps(receipt.says()))


def counted(folder: Path | str) -> list[tuple[str, str, int]]:
    """Partition, run and number of the write action of each file."""
    return [(Path(one.path).parent.name, one.run_uid, one.number) for one in published_files(folder)]


def test_in_a_closed_day_only_its_receipt_counts_and_other_days_are_as_before(lake: Path) -> None:
    old = [(DAY, "old", 2), ("store=1", "old", 2), ("day=2026-03-02", "old", 2), ("day=2026-03-011", "old", 2)]
    assert counted(lake) == old
    close(lake, closed(run(45), files=2))
    assert counted(lake) == [*old[2:], (DAY, "a45", 2), (DAY, "a45", 3)]
    close(lake, closed(run(46), files=0))
    assert counted(lake) == old[2:], "a day that was closed without a file is empty"
    close(lake, closed(run(44)))
    assert counted(lake) == old[2:], "a zombie's receipt comes late"


def test_one_day_is_read_alone_and_only_a_day_in_doubt_is_refused(lake: Path) -> None:
    close(lake, closed(run(45), files=2))
    close(lake, closed(run(3, B), scope="day=2026-03-02"))
    assert counted(lake / DAY) == counted(f"{lake / DAY}/") == [(DAY, "a45", 2), (DAY, "a45", 3)]
    assert counted(lake / "day=2026-03-011") == [("day=2026-03-011", "old", 2)]
    assert counted(lake / DAY / "store=1") == []
    with pytest.raises(FileNotFoundError, match=r"no run has published such a partition.*day=2020-01-01"):
        counted(lake / "day=2020-01-01")
    close(lake, closed(run(45), scope="day=2020-01-01", files=0))
    assert counted(lake / "day=2020-01-01") == []
    close(lake, closed(run(9), scope="day=2026-03-02"))
    with pytest.raises(ConfigurationError, match=r"day=2026-03-02 was closed by run b3 .* and run a9"):
        published_files(lake / "day=2026-03-02")
    with pytest.raises(ConfigurationError, match="day=2026-03-02"):
        published_files(lake)
    assert counted(lake / DAY) == [(DAY, "a45", 2), (DAY, "a45", 3)]


def test_a_folder_that_no_run_publishes_into_is_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "dt=1").mkdir()
    assert counted(tmp_path) == counted(tmp_path / "dt=1") == []
    for missing in (tmp_path / "dt=2", tmp_path / "none"):
        with pytest.raises(FileNotFoundError):
            published_files(missing)


def test_a_writer_whose_folder_looks_like_a_partition_has_its_own_receipts(lake: Path) -> None:
    close(lake / DAY, closed(run(1), scope="hour=2026-03-01T00Z"))
    assert counted(lake / DAY) == [("hour=2026-03-01T00Z", "a1", 2)]


def test_a_reader_within_the_lake_finds_the_day_by_a_relative_path(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close(lake, closed(run(45)))
    monkeypatch.chdir(lake)
    assert counted(DAY) == [(DAY, "a45", 2)] and len(counted(".")) == 3


def test_a_damaged_receipt_is_named(lake: Path) -> None:
    close(lake, closed(run(45)))
    (lake / DAYS / DAY / run(45).receipt("keep")).write_text("{")
    with pytest.raises(ValueError, match=f"{DAY}/{run(45).receipt('keep')} is no closing receipt"):
        published_files(lake)


def test_half_written_receipts_and_foreign_names_are_passed_over(lake: Path) -> None:
    close(lake, closed(run(45)))
    for name in (f".{run(46).receipt('keep')}.1.ff", "README.json", f"{run(46).claim}.x.json"):
        put(lake / DAYS / DAY / name, "{")
    assert (DAY, "a45", 2) in counted(lake)


def test_earlier_versions_refuse_a_folder_with_days_and_say_what_they_need(lake: Path) -> None:
    assert len(reader_before_days.published_files(lake)) == 4
    close(lake, closed(run(45)))
    with pytest.raises(ValueError, match="needs-a-newer-airflow_logio"):
        reader_before_days.published_files(lake)
    with pytest.raises(ValueError, match="needs-a-newer-airflow_logio"):  # as its writers read, that replace or refuse
        list(reader_before_days.receipts_of(LocalFiles(str(lake))))
