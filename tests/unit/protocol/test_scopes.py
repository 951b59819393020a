"""Who may own what in a table, decided from rows: all pairs of writers, ages, and (ordinal, uid)."""

from __future__ import annotations

from itertools import product

import pytest

from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.external_rules import Contender, Owner, owner_by, owner_by_run
from airflow_logio.protocol.scope_rules import LONGEST_KEY, DayRun, ScopeContender, ScopeRow, scope_of_runs

KINDS = ("append", "replace", "error", "by day", "by hour", "runs of a", "runs of b")
ONE_OF_A_KIND = {"by hour", "runs of b"}
OLDER, NEWER = Owner("older", 1.0), Owner("newer", 2.0)


def contender(kind: str, run: Owner) -> Contender:
    if kind.startswith("by "):
        return Contender("t", "wh", "save", run, "overwrite", by=kind.removeprefix("by "))
    if kind.startswith("runs of "):
        return Contender("t", "wh", "save", run, "supersede", run_column=kind.removeprefix("runs of "))
    return Contender("t", "wh", "save", run, kind)


def is_refused(act: object) -> bool:
    try:
        act()  # type: ignore[operator]
    except WriteRefused:
        return True
    return False


def takes_over(first: str, second: str, second_is_newer: bool) -> str:
    """A run of kind `first` has begun; one of kind `second` begins: does it, and may the first one write afterwards?"""
    one, other = (OLDER, NEWER) if second_is_newer else (NEWER, OLDER)
    before, after = contender(first, one), contender(second, other)
    try:
        changes = after.takes_over(before.claimed, ("clicks",))
    except WriteRefused:
        return "refused"
    owner = after.claimed if changes else before.claimed
    after.check_owner(owner)
    return "begins, the first is " + ("shut out" if is_refused(lambda: before.check_owner(owner)) else "not")


JOINS, SHUTS_OUT, REFUSED = "begins, the first is not", "begins, the first is shut out", "refused"
EXPECTED: dict[tuple[str, str, bool], str] = {
    **{("by day", kind, newer): REFUSED for kind in ("append", "error", "by hour") for newer in (True, False)},
    **{("by day", "by day", newer): JOINS for newer in (True, False)},
    **{("runs of a", kind, newer): REFUSED for kind in ("error", "by day", "runs of b") for newer in (True, False)},
    **{("runs of a", kind, newer): JOINS for kind in ("runs of a", "append") for newer in (True, False)},
    **{("runs of a", "replace", newer): SHUTS_OUT for newer in (True, False)},
    **{("by day", "runs of a", newer): REFUSED for newer in (True, False)},
    **{("append", "runs of a", newer): JOINS for newer in (True, False)},
    **{(kind, "runs of a", True): SHUTS_OUT for kind in ("replace", "error")},
    **{(kind, "runs of a", False): REFUSED for kind in ("replace", "error")},
    **{("by day", "replace", newer): SHUTS_OUT for newer in (True, False)},
    **{(kind, "by day", True): SHUTS_OUT for kind in ("append", "replace", "error")},
    ("append", "by day", False): SHUTS_OUT,  # a run that appends owns nothing that ages could be compared with
    ("replace", "by day", False): REFUSED,
    ("error", "by day", False): REFUSED,
    **{("append", "append", newer): JOINS for newer in (True, False)},
    **{("append", kind, True): SHUTS_OUT for kind in ("replace", "error")},
    **{
        ("append", kind, False): JOINS for kind in ("replace", "error")
    },  # `empties` compares with the youngest that appends
    **{(kind, other, True): SHUTS_OUT for kind in ("replace", "error") for other in ("replace", "error")},
    **{(kind, other, False): REFUSED for kind in ("replace", "error") for other in ("replace", "error", "append")},
    **{(kind, "append", True): JOINS for kind in ("replace", "error")},
}


@pytest.mark.parametrize(("first", "second", "newer"), sorted(EXPECTED))
def test_every_pair_of_writers_of_one_table(first: str, second: str, newer: bool) -> None:
    """What owns parts has no age among others, but is itself refused where a younger run owns the whole table. What appends
    is beside what runs own."""
    assert takes_over(first, second, newer) == EXPECTED[first, second, newer]


def test_all_pairs_are_in_the_table() -> None:
    pairs = set(product(KINDS, KINDS, (True, False)))
    assert {(a, b, n) for a, b, n in pairs if not ONE_OF_A_KIND & {a, b}} <= set(EXPECTED)


def test_an_earlier_version_finds_an_owner_that_is_younger_than_any_clock() -> None:
    """It compares starts alone: those of this owner are in the year 2242."""
    for owner in (owner_by("day"), owner_by_run("logio_run")):
        assert owner.is_newer_than(Owner("z" * 32, 7_000_000_000.0)) and owner.began.startswith("2242")
    assert len(owner_by("d" * 28).run_uid) <= 32 and len(owner_by_run("d" * 27).run_uid) <= 32


@pytest.mark.parametrize("kind", ["append", "error"])
def test_a_refusal_names_the_pipelines_and_the_way_out(kind: str) -> None:
    with pytest.raises(WriteRefused, match=r"pipelines \(clicks, sales\) own it by 'day'.*run_uid = 'by:day'"):
        contender(kind, NEWER).takes_over(owner_by("day"), ("clicks", "sales"))


def test_a_retry_asks_whether_days_are_owned() -> None:
    for kind in ("append", "error", "by hour"):
        assert is_refused(lambda kind=kind: contender(kind, NEWER).check_not_replaced(owner_by("day")))
    for kind in ("error", "by day", "runs of b"):
        assert is_refused(lambda kind=kind: contender(kind, NEWER).check_not_replaced(owner_by_run("a")))
    for kind in ("append", "replace", "runs of a"):
        contender(kind, OLDER).check_not_replaced(owner_by_run("a"))
    contender("by day", OLDER).check_not_replaced(owner_by("day"))
    contender("replace", OLDER).check_not_replaced(owner_by("day"))  # it may be about to take the table over
    assert is_refused(lambda: contender("by day", OLDER).check_not_replaced(NEWER))


# --- the scope --------------------------------------------------------------------------------------------------------

LINES = {"mine": ("clicks", "log"), "another pipeline": ("sales", "log"), "another log": ("clicks", "copy")}


def claimant(line: str, ordinal: int, uid: str) -> ScopeRow:
    return ScopeRow(*LINES[line], ordinal, uid)


def claims(mine: tuple[int, str], row: ScopeRow | None, *, takes_over: bool = False) -> bool:
    run = DayRun(*LINES["mine"], *mine)
    scope = ScopeContender("t", "wh", "day=2026-03-01", run, takes_over)
    return not is_refused(lambda: scope.check_claim(row))


@pytest.mark.parametrize(("ordinal", "uid"), list(product((4, 5, 6), ("a", "b", "c"))))
def test_a_run_claims_what_older_runs_of_its_line_have_claimed(ordinal: int, uid: str) -> None:
    """Of two with one ordinal, the second is refused, whichever uid is greater."""
    mine = (5, "b")
    expected = ordinal < 5 or uid == "b"
    assert claims(mine, claimant("mine", ordinal, uid)) is expected
    both = claims((ordinal, uid), claimant("mine", *mine)), claims(mine, claimant("mine", ordinal, uid))
    assert (ordinal, uid) == mine or uid == "b" or sum(both) <= 1, "two runs are never each younger than the other"


@pytest.mark.parametrize("line", ["another pipeline", "another log"])
@pytest.mark.parametrize("ordinal", [1, 5, 9])
def test_another_line_is_taken_over_only_at_a_persons_word(line: str, ordinal: int) -> None:
    row = claimant(line, ordinal, "a")
    assert not claims((5, "b"), row) and claims((5, "b"), row, takes_over=True)


def test_to_take_over_does_not_help_against_a_younger_run_of_the_line() -> None:
    assert not claims((5, "b"), claimant("mine", 6, "a"), takes_over=True)


def test_what_runs_own_is_the_pipelines_and_has_a_key_of_its_own() -> None:
    """A long one is as good. Sentences name the pipeline, and the command has the partition alone."""
    of_runs = ScopeContender("t", "wh", "day=2026-03-01", DayRun("clicks", "log", 5, "b"), of_runs=True)
    assert of_runs.key == "day=2026-03-01@clicks" and scope().key == "day=2026-03-01"
    keys = {scope_of_runs(f"{'d' * 28}=2026-10-25T003015Z", f"{'p' * 62}{end}") for end in "ab"}
    assert len(keys) == 2 and max(map(len, keys)) <= LONGEST_KEY
    with pytest.raises(
        WriteRefused,
        match=r"part of pipeline 'clicks' for day=2026-03-01 in table 't' .*`logio again --pipeline clicks --partition "
        r"2026-03-01 --above 9`",
    ):
        of_runs.check_claim(claimant("mine", 9, "z"))


def test_nobody_has_claimed_it() -> None:
    assert claims((1, "a"), None)


def scope(**options: object) -> ScopeContender:
    return ScopeContender("t", "wh", "day=2026-03-01", DayRun("clicks", "log", 5, "b"), **options)  # type: ignore[arg-type]


def test_only_the_run_that_has_claimed_it_last_may_close() -> None:
    scope().check_close(claimant("mine", 5, "b"))
    scope().check_close(claimant("mine", 5, "b")._replace(live_ordinal=4, live_run="a", live_write=9))
    for row in (None, claimant("mine", 6, "c"), claimant("another log", 1, "c"), claimant("mine", 4, "a")):
        with pytest.raises(WriteRefused, match="stays as it is"):
            scope().check_close(row)


@pytest.mark.parametrize(
    ("line", "next_step"),
    [
        ("mine", r"stays as it is\. Let that run finish$"),
        (
            "another log",
            r"That is pipeline 'clicks' of another log, which a person let .* 2026-03-01 --take-over` lets its",
        ),
        (
            "another pipeline",
            r"That is pipeline 'sales', which a person let .*`logio again --pipeline clicks .* --take-over`",
        ),
    ],
)
def test_a_run_whose_day_was_claimed_since_says_by_which_and_what_helps(line: str, next_step: str) -> None:
    said = rf"was claimed by run c of pipeline '{LINES[line][0]}' since run b began.*{next_step}"
    for check in (scope().check_close, scope(fills_at_once=True).check_fill):
        with pytest.raises(WriteRefused, match=said):
            check(claimant(line, 9, "c"))


def test_a_retry_asks_whether_the_run_could_still_close() -> None:
    """Before its opening, behind it, behind its closing."""
    for row in (None, claimant("mine", 4, "a"), claimant("mine", 5, "b")):
        scope().check_retry(row)
    scope().check_retry(claimant("mine", 6, "c")._replace(live_ordinal=5, live_run="b", live_write=9))
    for row in (claimant("mine", 6, "c"), claimant("another log", 1, "c")):
        with pytest.raises(WriteRefused, match="stays as it is"):
            scope().check_retry(row)


def test_another_writer_of_the_run_has_filled_it() -> None:
    with pytest.raises(WriteRefused, match="another writer of run b"):
        scope().check_close(claimant("mine", 5, "b")._replace(live_ordinal=5, live_run="b", live_write=3))


@pytest.mark.parametrize(("held", "is_filled"), list(product((0, 7), (True, False))))
def test_rows_are_replaced_by_none_only_where_that_is_allowed(held: int, is_filled: bool) -> None:
    refused = is_refused(lambda: scope().check_records(held=held, is_filled=is_filled))
    assert refused is (held == 0 and is_filled)
    scope(replaces_by_nothing=True).check_records(held=held, is_filled=is_filled)


def test_a_restored_log_is_told_what_to_do() -> None:
    with pytest.raises(WriteRefused, match=r"--partition 2026-03-01 --above 9"):
        scope().check_claim(claimant("mine", 9, "z"))
    with pytest.raises(WriteRefused, match=r"the same number, 5.*--above 5"):
        scope().check_claim(claimant("mine", 5, "z"))
    with pytest.raises(
        WriteRefused, match=r"of another log.*logio again --pipeline clicks --partition 2026-03-01 --take-over`"
    ):
        scope().check_claim(claimant("another log", 1, "z"))
