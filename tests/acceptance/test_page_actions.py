"""What a person does to a run on the page, by click in a real browser: the dialog, what the log has then, who is noted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

import pytest
from playwright.sync_api import expect

from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.chromium import browsed
from tests.support.page_server import page_of
from tests.support.running import PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance


@pytest.fixture
def run(
    sqlite_url: str,
    warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Running]:
    """All groups but `publish` run, and wait for it. Commands that the page starts have its folder and its warehouse."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAREHOUSE_URL", warehouse_url)
    launcher, backlog = PlainLauncher(tmp_path / "drivers"), BacklogBound(events=8)
    with running(sqlite_url, warehouse_url, small_transactions, launcher, backlog=backlog) as started:
        alive = ("ingest", "totals", "hourly")
        started.until(lambda: all(map(started.is_running, alive)), "they run", *alive)
        yield started


@contextmanager
def supervised(run: Running) -> Iterator[None]:
    """The test is its supervisor, and says so again and again: nothing is launched for a run that no one has looked at for
    ten seconds, and a page may need longer."""
    over = threading.Event()

    def note() -> None:
        while not over.is_set():
            run.store.note_supervisor("the test", run_uid=run.run.uid)
            over.wait(1.0)

    noting = threading.Thread(target=note)
    noting.start()
    try:
        yield
    finally:
        over.set()
        noting.join()


def test_a_parked_group_is_retried_by_click(run: Running) -> None:
    ref = GroupRef(run.run.run_id, "totals", run.status("totals").incarnation)
    assert run.store.park(ref, "ExternalUnavailable: the warehouse is unavailable")
    noted: list[str] = []
    shown = page_of(run.context.log_url, run.run.uid[:8], noted=noted)
    with supervised(run), shown as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        history = page.get_by_label("History", exact=True)
        expect(history.locator("li.parked")).to_contain_text("the warehouse is unavailable")
        page.get_by_label("Groups", exact=True).get_by_role("button", name="totals").click()
        panel = page.get_by_label("Group totals", exact=True)
        retry, dialog = panel.get_by_role("button", name="Retry ..."), page.get_by_role("dialog")
        retry.click()
        expect(dialog).to_contain_text("Retry group totals?")
        expect(dialog).to_contain_text("it resumes where the log ends")
        assert browser.faults() == []
        dialog.get_by_role("button", name="Cancel").click()
        expect(retry).to_be_focused()
        assert run.status("totals").state is GroupState.PARKED
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Retry", exact=True).click()
        expect(dialog.locator(".said")).to_contain_text("incarnation 2 launched", timeout=120_000)
        dialog.get_by_role("button", name="Close").click()
        drivers = [one for one in run.store.drivers(run.run.run_id) if one.group == "totals"]
        assert [(one.reason, one.is_recovery) for one in drivers[1:]] == [("logio retry", False)]
        # The parking stays in the history, with its cause.
        expect(history.locator("li.stopped")).to_contain_text("the warehouse is unavailable (parked")
        expect(retry).to_have_count(0)
        run.finish()
        assert run.status("totals").incarnation == 2
        assert browser.faults() == browser.complaints == []
    (told,) = noted
    assert told.count("asks on the page") == 1, "what was cancelled was not asked"
    assert f"{getuser()} asks on the page: retry run" in told and "'group': 'totals'" in told


def test_a_run_is_given_up_by_click(run: Running) -> None:
    noted: list[str] = []
    with page_of(run.context.log_url, run.run.uid[:8], noted=noted) as address, browsed() as browser:
        page = browser.page
        page.goto(address)
        actions = page.get_by_label("What can be done with the run")
        give_up, dialog = actions.get_by_role("button", name="Give up ..."), page.get_by_role("dialog")
        give_up.click()
        expect(dialog).to_contain_text("Its drivers are halted first (")
        expect(dialog).to_contain_text("This cannot be taken back.")
        assert browser.faults() == []
        # Who presses Enter the moment the button has the focus again is heard: the dialog opens anew.
        give_up.evaluate("button => button.addEventListener('focus', () => button.click(), { once: true })")
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        assert run.store.find_run(run.run.uid).state is RunState.RUNNING
        assert run.status("totals").desired is GroupState.RUNNING
        page.keyboard.press("Escape")
        expect(give_up).to_be_focused()
        page.keyboard.press("Enter")
        done = dialog.get_by_role("button", name="Give it up")
        done.click()
        said = dialog.locator(".said")
        refused = dialog.get_by_text("give it up again when it has")
        expect(said.or_(refused)).to_be_visible()
        if refused.is_visible():  # its drivers had ten seconds to end
            done.click()
        expect(said).to_contain_text(f"uid {run.run.uid[:8]}, is given up")
        dialog.get_by_role("button", name="Close").click()
        assert run.store.find_run(run.run.uid).state is RunState.SUPERSEDED
        assert {run.status(group).state for group in ("ingest", "totals", "hourly")} == {GroupState.HALTED}
        expect(actions).to_have_count(0)
        expect(page.get_by_label("History", exact=True)).to_contain_text("the run has ended: superseded")
        assert browser.faults() == browser.complaints == []
    assert f"{getuser()} asks on the page: give_up run" in noted[0] and run.run.uid in noted[0]
