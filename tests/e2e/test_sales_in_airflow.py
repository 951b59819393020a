"""The sales pipeline in a real Airflow, with real spark-submit drivers: killed, halted by a person, taken up again.

Then the one with a replicated group: scaled up, a replica killed, scaled down, while it runs; then scaled by the Controller,
as its policy says and as a person asks. And a small one whose input is late.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect

from airflow_logio.protocol.states import ALIVE, GroupState, RunState, ScalingState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.ui.page_places import PREFIX, ROUTES
from demo.places import Places
from demo.rest import AirflowRefused, AirflowUnavailable
from demo.standalone import COMPONENTS, AirflowComponents, Standalone, component_of
from tests.support.airflow_browser import group_of, in_airflow, page_of_task, picture
from tests.support.chromium import Browsed
from tests.support.grocery import assert_exact, expected, load_products, write_slice
from tests.support.openlineage_events import Event, datasets, events_of
from tests.support.person import Person
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(2400)]

DAG_ID, RUN_ID = "logio_sales", "e2e"
READER = "on_hourly_sales"
READS = '''
"""A DAG that runs on what the sales pipeline has written."""

from airflow.sdk import DAG, Asset, task

HOURLY = Asset("logio://warehouse_db/hourly_sales")
with DAG("on_hourly_sales", schedule=[HOURLY], catchup=False):

    @task
    def read(*, triggering_asset_events=None):
        return [event.extra for event in triggering_asset_events[HOURLY]]

    read()
'''
SCALED = "logio_sales_scaled"
CONTROLLER = "logio_controller"
LATE = "late_input"
CLICKED = "by click"
OURS = ".logio"
"""The page, within Airflow's own."""
RECORDS = 120_000
FEW_RECORDS = 90_000
HELD_AT = 60
"""Events after which a source reads nothing more until it is told."""
RECORDS_PER_BATCH = 1_000 * 100
DAGS = Path(__file__).parents[2] / "dags"
HOURLY = ("hourly.1", "hourly.2", "hourly.3")
LONG, SHORT = 600.0, 60.0
"""Seconds that something may take on a machine with much else to do."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("airflow")
    load_products(f"sqlite:///{folder}/warehouse.db")
    shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    held_until_told(folder / "dags" / "pipelines" / "sales.py", folder / "go_on")
    slow_until_told(folder / "dags" / "pipelines" / "sales_scaled.py", folder / "enough")
    with_a_policy_of_its_own(folder / "dags" / "logio_controller.py")
    (folder / "dags" / f"{READER}.py").write_text(READS)
    for late in (Path(__file__).parent / "dags").glob("late_*.py"):
        shutil.copy(late, folder / "dags")
    return Places(folder, folder / "dags", f"sqlite:///{folder}/logio.db", f"sqlite:///{folder}/warehouse.db")


def held_until_told(pipeline: Path, go_on: Path) -> None:
    """The shipped pipeline, whose source stops half-way until a file is there: no group finishes before it is halted.

    One group has a Spark UI, which local masters leave out.
    """
    shipped = pipeline.read_text()
    first = "    amounts = pc.round("
    assert shipped.count(first) == 1
    held = f"while cents.calls > {HELD_AT} and not __import__('os').path.exists({str(go_on)!r}):"
    lines = ("cents.calls = getattr(cents, 'calls', 0) + 1", held, "    __import__('time').sleep(0.05)")
    held_back = shipped.replace(first, "".join(f"    {line}\n" for line in lines) + first)
    group = 'sales.group("hourly", hourly)'
    assert held_back.count(group) == 1
    pipeline.write_text(held_back.replace(group, f"{group[:-1]}, spark={{'spark.ui.enabled': 'true'}})"))


def slow_until_told(pipeline: Path, enough: Path) -> None:
    """The shipped pipeline, slow for most of an hour, until a file is there: how fast this machine is must not matter. Its
    source waits for that file, too, so that there is something to drain."""
    shipped = pipeline.read_text()
    sleep = "time.sleep(records.num_rows * SECONDS_PER_RECORD)"
    assert shipped.count(sleep) == 1
    told = f"__import__('os').path.exists({str(enough)!r})"
    slow = shipped.replace(sleep, f"{told} or time.sleep(records.num_rows * 50 * SECONDS_PER_RECORD)")
    defined, named = "sales_scaled = Pipeline(", "transform=cents,"
    assert slow.count(defined) == slow.count(named) == 1
    held = (
        "def held(records):",
        "    held.calls = getattr(held, 'calls', 0) + 1",
        f"    while held.calls > {HELD_AT} and not {told}:",
        "        time.sleep(0.05)",
        "    return cents(records)",
    )
    slow = slow.replace(named, "transform=held,").replace(defined, "\n".join(held) + f"\n\n\n{defined}")
    pipeline.write_text(slow)


def with_a_policy_of_its_own(controller: Path) -> None:
    """The shipped DAG, with a policy that looks for seconds, changes soon again, and leaves one replica to a person."""
    shipped = controller.read_text()
    assert shipped.count("policy=DS2())") == 1
    controller.write_text(
        shipped.replace("policy=DS2())", "policy=DS2(cool_down_seconds=1, maximum=2), look_seconds=6)")
    )


@pytest.fixture(scope="module")
def standalone(places: Places) -> Iterator[Standalone]:
    (places.folder / "lineage").mkdir()
    transport = {"type": "file", "log_file_path": str(places.folder / "lineage" / "event")}
    started = Standalone(places, {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}, wanted_port=0)
    started.start()
    try:
        yield started
    finally:
        started.stop()
        for process in drivers(places):
            process.kill()


class Patient(Person):
    """Whose look at a run starts a component of Airflow that has ended, as the demonstration does.

    On SQLite, which locks no rows, Airflow 3.3's scheduler ends when a task is cleared while it schedules that one's run.
    """

    def __init__(self, standalone: Standalone) -> None:
        super().__init__(standalone.url, standalone.login)
        self._components = AirflowComponents(standalone.start_component, print)
        self._components.remember(standalone.components())

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        self._components.look({})
        return super().tasks(dag_id, run_id)

    def run_state(self, dag_id: str, run_id: str) -> str:
        self._components.look({})
        return super().run_state(dag_id, run_id)


@pytest.fixture(scope="module")
def person(standalone: Standalone) -> Person:
    airflow = Person(standalone.url, standalone.login)

    def is_ready() -> bool:
        standalone.check_alive()
        try:
            return airflow.is_healthy() and all(map(airflow.has_dag, (DAG_ID, SCALED, CONTROLLER, READER, LATE)))
        except AirflowUnavailable:
            return False

    eventually(is_ready, what="Airflow is healthy and has parsed the DAG", timeout=LONG, every=0.5)
    airflow.unpause(DAG_ID)
    airflow.unpause(READER)
    return Patient(standalone)


def drivers(places: Places) -> list[psutil.Process]:
    """Processes of Spark drivers that this test's tasks have launched."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(places.drivers) in part for part in process.info["cmdline"] or [])
    ]


def group(log: LogStore, name: str) -> GroupStatus:
    return log.group(log.list_runs()[0].run_id, name)


def test_the_components_that_airflow_standalone_has_started_are_told_apart(
    person: Person, standalone: Standalone
) -> None:
    """So that the demonstration can say which is gone, and start it again."""
    found = [component_of(process) for process in standalone.components()]
    assert sorted(filter(None, found)) == sorted(COMPONENTS), [one.cmdline() for one in standalone.components()]


def test_killed_halted_and_cleared_it_is_exact(
    person: Person, places: Places, standalone: Standalone, tmp_path: Path
) -> None:
    transactions = write_slice(tmp_path / "transactions.parquet", RECORDS)
    person.trigger(DAG_ID, RUN_ID, {"transactions": str(transactions)})
    has_begun = lambda: task_state(person, "sales.start_run") == "success"  # noqa: E731
    eventually(has_begun, what="the run starts", timeout=LONG, every=0.2)
    log = open_store(places.log_url, application="logio test")

    # A driver is killed: the triggerer, beside which it ran, recovers its group, whose own task continues waiting.
    eventually(lambda: is_watched(places, "sales.hourly"), what="hourly is watched", timeout=LONG)
    eventually(lambda: pid(log, "hourly"), what="hourly runs", timeout=LONG)
    assert group(log, "hourly").incarnation == 1
    comes_back_before_ones_eyes(standalone, log)

    shows_its_spark_ui(person, log)

    # A person marks its task failed: the group halts, and Airflow's own retries do not undo that.
    assert task_state(person, "sales.hourly") == "deferred"
    assert is_watched(places, "sales.hourly"), "by the same trigger as before"
    assert group(log, "hourly").state in ALIVE
    person.mark(DAG_ID, RUN_ID, "sales.hourly", "failed")
    eventually(lambda: group(log, "hourly").state is GroupState.HALTED, what="hourly halts", timeout=LONG)
    assert task_state(person, "sales.hourly") == "failed"

    # A person retries it on the page, which clears the task: it resumes where it stopped.
    is_retried_by_click(standalone)
    (places.folder / "go_on").touch()
    eventually(
        lambda: task_state(person, "sales.finish_run") == "success", what="the run ends", timeout=LONG, every=0.5
    )
    eventually(lambda: person.run_state(DAG_ID, RUN_ID) == "success", what="the DAG run is green", timeout=LONG)

    run = log.list_runs()[0]
    assert run.state is RunState.FINISHED
    incarnations = {status.group: status.incarnation for status in log.groups(run.run_id)}
    assert incarnations == {"ingest": 1, "totals": 1, "hourly": 3, "publish": 1}
    assert_exact(places.warehouse_url, transactions, RECORDS_PER_BATCH)
    leads_from_a_number_to_its_rows(standalone, places)
    is_found_in_all_its_places(standalone)

    assert person.result(DAG_ID, RUN_ID, "sales.start_run") == run.uid
    summary = person.result(DAG_ID, RUN_ID, "sales.ingest")
    assert (summary["run"], summary["records"]["ingest.out out"]) == (run.uid, RECORDS)
    assert str(places.folder) not in str(summary), "no URL of a database in a result"
    lineage_is_whole(places, run, transactions)
    read_once(person, log, run)
    eventually(lambda: not drivers(places), what="drivers end", timeout=LONG)
    log.dispose()


def comes_back_before_ones_eyes(standalone: Standalone, log: LogStore) -> None:
    """In the tab of the DAG run: a driver is killed, and its death and recovery are seen without a reload."""
    with in_airflow(standalone.url, login_of(standalone), DAG_ID, RUN_ID) as browser:
        panel = group_of(browser, "hourly")
        expect(panel.get_by_text("hourly/1", exact=True)).to_be_visible(timeout=LONG * 1000)
        os.kill(pid(log, "hourly"), signal.SIGKILL)
        eventually(lambda: group(log, "hourly").incarnation == 2, what="hourly is recovered", timeout=LONG)
        expect(panel.get_by_text("hourly/2", exact=True)).to_be_visible(timeout=LONG * 1000)
        history = browser.page.get_by_label("History", exact=True)
        expect(history.locator("li.death")).to_contain_text("hourly/1")
        expect(history.locator("li.recovery")).to_contain_text("hourly/2")
        picture(browser, "recovered")
        assert browser.faults(OURS) == []
        link = panel.get_by_role("link", name="Open its Spark UI")
        expect(link).to_have_attribute("href", re.compile("^https?://"), timeout=LONG * 1000)
        expect(panel.get_by_label("The last lines")).to_contain_text("incarnation 2", timeout=LONG * 1000)
        # Without a mouse: Escape closes the panel, Enter opens it again.
        browser.page.keyboard.press("Escape")
        expect(panel).to_have_count(0)
        opener = browser.page.get_by_label("Graph", exact=True).get_by_role("button", name="hourly").first
        expect(opener).to_be_focused()
        browser.page.keyboard.press("Enter")
        expect(panel).to_be_visible()
        # The tab of a group's task is about its group.
        browser.page.goto(page_of_task(standalone.url, DAG_ID, RUN_ID, "sales.totals"))
        expect(browser.page.get_by_label("Group totals", exact=True)).to_be_visible()
        # Airflow keeps the tab when one goes to another task, whatever was chosen in it.
        group_of(browser, "ingest")
        expect(browser.page.get_by_label("Group ingest", exact=True)).to_be_visible()
        browser.page.get_by_test_id("expand-all-button").click()
        browser.page.get_by_test_id(f"grid-{RUN_ID}-sales.publish").click()
        expect(browser.page.get_by_label("Group publish", exact=True)).to_be_visible()


def is_retried_by_click(standalone: Standalone) -> None:
    with in_airflow(standalone.url, login_of(standalone), DAG_ID, RUN_ID) as browser:
        panel = group_of(browser, "hourly")
        panel.get_by_role("button", name="Retry ...").click()
        dialog = browser.page.get_by_role("dialog", name="Retry group hourly?")
        dialog.get_by_role("button", name="Retry", exact=True).click()
        expect(dialog.locator(".said")).to_contain_text("cleared", timeout=LONG * 1000)
        assert browser.faults(OURS) == []
        dialog.get_by_role("button", name="Close").click()
        expect(panel.get_by_text("hourly/3", exact=True)).to_be_visible(timeout=LONG * 1000)


def leads_from_a_number_to_its_rows(standalone: Standalone, places: Places) -> None:
    """In the tab: a number of the destination is found by its values, and followed to rows of the file."""
    hour, store_id, cents = rows_of(
        places.warehouse_url,
        "SELECT hour, store_id, sum(sales_cents) FROM hourly_sales GROUP BY 1, 2 HAVING count(*) = 1 ORDER BY 1, 2 LIMIT 1",
    )[0]
    with in_airflow(standalone.url, login_of(standalone), DAG_ID, RUN_ID) as browser:
        page = browser.page
        lineage = page.get_by_label("Lineage", exact=True)
        lineage.get_by_label("Port").select_option("hourly.out")
        lineage.get_by_label("by", exact=False).select_option("where")
        lineage.get_by_label("What to look for").fill(f"hour={hour[:16]}, store_id={store_id}")
        page.keyboard.press("Enter")
        lineage.get_by_role("button", name="hourly.out", exact=False).first.click()
        details = lineage.locator("aside")
        details.get_by_role("button", name="Show records").click()
        region = details.get_by_role("region", name="Records")
        row = region.get_by_role("row").filter(has_text=str(cents)).filter(has_text=str(store_id)).first
        row.get_by_role("button").click()
        behind = details.get_by_label("What the record was made from")
        rows = behind.get_by_role("region", name="Records of ingest.out").get_by_role("row")
        expect(rows.nth(1)).to_be_visible()
        texts = [one.get_by_role("cell").all_inner_texts() for one in rows.all()[1:]]
        column = rows.first.get_by_role("columnheader").all_inner_texts().index("store_id")
        stores = {text[column] for text in texts}
        assert stores == {str(store_id)}, texts
        assert sum(int(text[-1]) for text in texts) == cents, "the rows that are shown add up to the number"
        picture(browser, "lineage")
        assert browser.faults(OURS) == []
        # Its link shows the same to someone else, once they have logged in. It names the record by its place.
        _, _, named = page.url.partition("&port=")  # behind the uid of the run, which may have any digits
        assert "record=hourly.out" in named and str(cents) not in named
        link = page.url
        page.goto(standalone.url)
        page.goto(link)
        expect(rows).to_have_count(len(texts) + 1)
        assert page.url == link


def is_found_in_all_its_places(standalone: Standalone) -> None:
    """The list of all runs and that of the DAG's runs lead to the run; and so does the tab of the DAG run."""
    url = standalone.url.rstrip("/")
    with in_airflow(standalone.url, login_of(standalone), DAG_ID, RUN_ID) as browser:
        page = browser.page
        graph = page.get_by_label("Graph", exact=True)
        lists = {f"plugin/{ROUTES['nav']}": "Runs", f"dags/{DAG_ID}/plugin/{ROUTES['dag']}": f"Runs of {DAG_ID}"}
        for where, heading in lists.items():
            page.goto(f"{url}/{where}")
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            assert browser.faults(OURS) == []
            page.get_by_label("Runs of pipeline sales", exact=True).get_by_role("button", name=RUN_ID).click()
            expect(graph).to_be_visible()
        page.goto(f"{url}/dags/{DAG_ID}/runs/{RUN_ID}")
        page.get_by_role("link", name="LOG.io", exact=True).last.click()
        expect(graph).to_be_visible()
        assert page.url.split("#")[0].endswith(ROUTES["dag_run"])


def login_of(standalone: Standalone) -> tuple[str, str]:
    login = standalone.login()
    assert login is not None
    return login


def shows_its_spark_ui(person: Person, log: LogStore) -> None:
    """The link of the task, which is deferred, leads to the recovered driver; its log says so, and shows the run."""

    def leads() -> str | None:
        load = group(log, "hourly").load
        link = person.links(DAG_ID, RUN_ID, "sales.hourly")["Spark UI"]
        return link if load and load.application and link == load.application.ui_url else None

    address = eventually(leads, what="the link leads to the recovered driver", timeout=LONG, every=0.2)
    assert address is not None
    assert b"spark" in urllib.request.urlopen(f"{address}/jobs/", timeout=SHORT).read().lower()
    printed = person.links(DAG_ID, RUN_ID, "sales.hourly")["Driver log"]
    assert printed is not None and printed.endswith("/tasks/sales.hourly?try_number=1")
    said = "Group hourly, incarnation 2: Spark application local-"
    eventually(lambda: said in person.log(DAG_ID, RUN_ID, "sales.hourly"), what="it is said", timeout=LONG)

    def names_the_group() -> bool:
        """Its trigger has launched it; or it was woken as well, because that took long, and finds that it was launched."""
        return "group hourly of e2e (sales), incarnation 1" in person.log(DAG_ID, RUN_ID, "sales.supervise")

    eventually(names_the_group, what="the log of the supervising task says what was recovered", timeout=LONG)


def lineage_is_whole(places: Places, run: Run, transactions: Path) -> None:
    """What OpenLineage was told: one tree, one end of each attempt, a connected graph, and the truth about the tables."""

    def ends(job: str) -> list[Event]:
        return [event for event in told(places) if event["job"]["name"] == job and event["eventType"] == "COMPLETE"]

    def last_of_attempts() -> set[str]:
        of_tasks = [event for event in told(places) if event["job"]["name"] != DAG_ID]
        return set({event["run"]["runId"]: event["eventType"] for event in of_tasks}.values())

    eventually(lambda: ends(DAG_ID), what="OpenLineage is told that the DAG run has ended", timeout=LONG)
    # Processes of their own tell the end of an attempt, perhaps behind that of the DAG run.
    ended_all = lambda: last_of_attempts() <= {"COMPLETE", "FAIL"}  # noqa: E731
    eventually(ended_all, what="OpenLineage is told that each attempt has ended", timeout=LONG)
    types: dict[tuple[str, str], list[str]] = {}
    parents: list[str] = []
    for event in told(places):
        types.setdefault((event["job"]["name"], event["run"]["runId"]), []).append(event["eventType"])
        if event["job"]["name"] != DAG_ID:
            parents.append(event["run"]["facets"]["parent"]["run"]["runId"])
    # A person's clear makes another run of the DAG for Airflow's provider: that one has ended, the other one has begun.
    begun, ended = (run_id for job, run_id in types if job == DAG_ID)
    assert (types.pop((DAG_ID, begun)), types.pop((DAG_ID, ended))) == (["START"], ["COMPLETE"])
    assert list(dict.fromkeys(parents)) == [begun, ended], "one tree, before the clear and after it"
    assert parents == sorted(parents, key=[begun, ended].index)
    for attempt, found in types.items():
        assert found[0] == "START" and found[-1] in ("COMPLETE", "FAIL"), (attempt, found)
        # A task that woke before Airflow had heard of its deferral is taken for failed, and works on all the same.
        between = {"START", "RUNNING", "FAIL"} if attempt[0].endswith(".supervise") else {"START", "RUNNING"}
        assert set(found[1:-1]) <= between, (attempt, found)
    failed = [job for (job, _), found in types.items() if found[-1] == "FAIL"]
    failed = [
        job for job in failed if not job.endswith(".supervise")
    ]  # it woke before Airflow had heard of its deferral
    assert failed == [f"{DAG_ID}.sales.hourly"], "the attempt that a person has marked"

    def done(task: str) -> Event:
        [event] = ends(f"{DAG_ID}.sales.{task}")
        return event

    truth = expected(transactions, RECORDS_PER_BATCH)
    hourly_sales, item_totals = (
        (places.warehouse_url.replace("sqlite:///", "sqlite://"), name) for name in ("hourly_sales", "item_totals")
    )
    assert datasets(done("publish"), "outputs") == {hourly_sales: len(truth.hourly)}
    assert datasets(done("totals"), "outputs") == {item_totals: len(truth.totals)}
    assert datasets(done("ingest"), "inputs") == {("file", str(transactions)): RECORDS}
    assert datasets(done("finish_run"), "outputs") == {
        hourly_sales: len(truth.hourly),
        item_totals: len(truth.totals),
    }
    [raw] = datasets(done("ingest"), "outputs")
    assert datasets(done("ingest"), "outputs") == {raw: RECORDS} and raw[0].startswith("logio://")
    assert datasets(done("totals"), "inputs") == {raw: RECORDS}
    assert datasets(done("hourly"), "inputs")[raw] == RECORDS
    assert datasets(done("hourly"), "outputs").keys() == datasets(done("publish"), "inputs").keys()
    facet = done("hourly")["run"]["facets"]["logio"]
    assert (facet["run"], facet["incarnations"], facet["recoveries"]) == (run.uid, 3, 1)


def told(places: Places) -> list[Event]:
    """The events of the sales pipeline's DAG, in the order in which they were made; each is checked."""
    found = events_of(*sorted((places.folder / "lineage").iterdir()))
    return [event for event in found if event["job"]["name"].split(".")[0] == DAG_ID]


def read_once(person: Person, log: LogStore, run: Run) -> None:
    """The DAG that is scheduled on `hourly_sales` runs once for this run, also if a person has its end done again."""
    eventually(lambda: person.runs(READER), what=f"{READER} runs", timeout=LONG)
    [reads] = person.runs(READER)
    eventually(lambda: person.run_state(READER, reads) == "success", what="it has read", timeout=LONG)
    [event] = person.result(READER, reads, "read")
    [written] = [row for row in log.progress(run.run_id) if row.port.operator == "publish" and row.direction == "write"]
    assert (event["run"], event["state"], event["records"]) == (run.uid, "finished", written.records)
    person.clear(DAG_ID, RUN_ID, "sales.finish_run")

    def has_run_again() -> bool:
        [assets] = [task for task in person.tasks(DAG_ID, RUN_ID) if task["task_id"] == "sales.assets"]
        return (assets["try_number"], assets["state"]) == (2, "success")

    eventually(has_run_again, what="the assets are looked at again", timeout=LONG, every=0.5)
    assert "nothing new of run" in person.log(DAG_ID, RUN_ID, "sales.assets")
    eventually(lambda: person.run_state(DAG_ID, RUN_ID) == "success", what="it is green again", timeout=LONG)
    assert person.runs(READER) == [reads]


def test_scaled_up_and_down_with_a_replica_killed_it_is_exact(
    person: Person, places: Places, standalone: Standalone, tmp_path: Path
) -> None:
    """The tasks of the DAG do it: `scale_up`, `kill_a_replica`, `recovered`, `scale_down`; then the Controller does."""
    (places.folder / "go_on").touch()
    transactions = write_slice(tmp_path / "transactions.parquet", FEW_RECORDS)
    person.begin(SCALED, RUN_ID, {"transactions": str(transactions)})
    for task in ("scale_up", "kill_a_replica", "recovered", "scale_down"):
        has_succeeded = lambda task=task: task_state(person, task, SCALED) == "success"  # noqa: E731
        eventually(has_succeeded, what=f"{task} succeeds", timeout=LONG, every=0.3)
    log = open_store(places.log_url, application="logio test")
    run = log.list_runs()[0]
    assert run.spec.key.dag_id == SCALED
    states = {status.group: (status.state, status.incarnation) for status in log.groups(run.run_id)}
    working = [name for name in HOURLY if states[name][0] is GroupState.RUNNING]
    assert len(working) == 1 and states["hourly.2"][1] == 2, states
    assert {slot.owner for slot in log.slots(run.run_id, "hourly") if not slot.done} == set(working)
    scaled_by_a_policy(person, places, log, run)
    scaled_by_a_person(person, places, log, run)
    scaled_and_drained_by_click(standalone, log, run)
    clicked = [one for one in person.audited(SCALED, RUN_ID) if one[0].startswith("logio_")]
    assert clicked == [(f"logio_{verb}", login_of(standalone)[0]) for verb in ("scale", "drain")]
    assert task_state(person, "sales.hourly", SCALED) == "deferred", "one task for all replicas, and it continues"

    (places.folder / "enough").touch()
    eventually(lambda: person.run_state(SCALED, RUN_ID) == "success", what="the run ends", timeout=LONG, every=0.5)
    assert log.find_run(run.uid).state is RunState.FINISHED
    read = person.result(SCALED, RUN_ID, "sales.ingest")["records"]["ingest.out out"]
    assert 0 < read < FEW_RECORDS, "it was drained"
    assert_exact(places.warehouse_url, write_slice(tmp_path / "as_far_as_read.parquet", read), RECORDS_PER_BATCH)
    summary = person.result(SCALED, RUN_ID, "sales.hourly")
    assert (summary["recoveries"], summary["records"]["slow.in in"]) == (1, read)
    asked = [one for one in log.scalings(run.run_id) if one.by != "controller" and one.reason != CLICKED]
    requests = {one.by.split()[1]: (one.replicas, one.state.value) for one in asked}
    assert requests == {"scale_up": (3, "done"), "scale_down": (1, "done"), "control": (3, "done")}
    eventually(lambda: not drivers(places), what="drivers end", timeout=LONG)
    log.dispose()


def scaled_by_a_policy(person: Person, places: Places, log: LogStore, run: Run) -> None:
    """By the run of the Controller's DAG that a person triggers, or by one of those that are due every minute.

    Before that, forms that make no sense: the task is red, and says why.
    """
    form = {"pipeline": "sales_scaled", "run": run.uid[:8], "group": "hourly", "replicas": 2}
    with pytest.raises(AirflowRefused) as refused:
        person.begin(CONTROLLER, "negative", {**form, "replicas": -1})
    assert refused.value.status == 400, "the form itself refuses it"
    person.trigger(CONTROLLER, "unknown", {**form, "group": "totals"})
    person.trigger(CONTROLLER, "too_many", {**form, "replicas": 4})
    person.trigger(CONTROLLER, "policy", {"pipeline": "sales_scaled"})
    ends = {name: end_of(person, name) for name in ("unknown", "too_many", "policy")}
    assert ends == {"unknown": "failed", "too_many": "failed", "policy": "success"}
    there = f"there are: group hourly of run {run.spec.key}, uid {run.uid[:8]}"
    assert there in person.log(CONTROLLER, "unknown", "control")
    assert "cannot have 4 replicas: its author allows 0 to 3" in person.log(CONTROLLER, "too_many", "control")
    [told] = person.result(CONTROLLER, "policy", "control")
    assert told["run"] == run.uid and told["why"] in logs_of(places, CONTROLLER, "policy", "control"), told

    def asked() -> ScalingRequest | None:
        requests = log.scalings(run.run_id)
        return next((one for one in requests if one.by == "controller" and one.state is ScalingState.DONE), None)

    request = eventually(asked, what="the policy asks, and it is done", timeout=LONG, every=0.3)
    assert request is not None and request.replicas == 2 and request.reason.startswith("DS2: "), request


def scaled_by_a_person(person: Person, places: Places, log: LogStore, run: Run) -> None:
    """With the form of the DAG, which is paused while a driver is on its way: the run's own supervisor continues with it."""
    person.trigger(CONTROLLER, "by_hand", {"pipeline": "sales_scaled", "group": "hourly", "replicas": 3})
    has_asked = lambda: log.scalings(run.run_id)[0].replicas == 3  # noqa: E731
    # Asks the log, not Airflow: a driver needs seconds to start, and Airflow may need as long to answer.
    eventually(has_asked, what="it asks for 3 replicas", timeout=LONG, every=0.1)
    person.pause(CONTROLLER)
    eventually(lambda: log.scalings(run.run_id)[0].state is ScalingState.DONE, what="3 replicas work", timeout=LONG)
    assert person.run_state(CONTROLLER, "by_hand") == "running"
    said = "scaling to 3: done: 3 replicas of hourly"
    eventually(lambda: said in logs_of(places, SCALED, RUN_ID, "sales.supervise"), what="it says so", timeout=LONG)
    person.unpause(CONTROLLER)
    assert end_of(person, "by_hand") == "success"
    person.pause(CONTROLLER)
    [told] = person.result(CONTROLLER, "by_hand", "control")
    assert (told["run"], told["group"], told["wanted"]) == (run.uid, "hourly", 3)
    assert told["result"].startswith("done: 3 replicas of hourly: "), told


def scaled_and_drained_by_click(standalone: Standalone, log: LogStore, run: Run) -> None:
    """In the tab, by dialogs; the log has the person's name. In the dark, as Airflow is for such a person."""
    login = login_of(standalone)
    with in_airflow(standalone.url, login, SCALED, RUN_ID, "dark") as browser:
        ours, airflows = browser.page.evaluate(
            "() => [document.querySelector('.logio'), document.body].map((one) => {"
            " const { color, fontFamily } = getComputedStyle(one); return `${color} ${fontFamily}` })"
        )
        assert ours == airflows, "text is as everywhere in Airflow, light or dark"
        panel = group_of(browser, "hourly")
        panel.get_by_role("button", name="Scale ...").click()
        dialog = browser.page.get_by_role("dialog", name="Scale group hourly?")
        dialog.get_by_label("Replicas").fill("2")
        dialog.get_by_label("Reason").fill(CLICKED)
        text, ground = browser.colours(dialog.get_by_role("button", name="Scale it"))
        assert text != ground
        box = dialog.bounding_box()
        assert box is not None and box["x"] > 200 and box["y"] > 200, "in the middle, whatever Airflow's own rules say"
        picture(browser, "scale")
        assert browser.faults(OURS) == []
        dialog.get_by_role("button", name="Scale it").click()
        expect(dialog.locator(".said")).to_be_visible()
        dialog.get_by_role("button", name="Close").click()
        is_done = lambda: log.scalings(run.run_id)[0].state is ScalingState.DONE  # noqa: E731
        eventually(is_done, what="2 replicas work", timeout=LONG)
        expect(panel.get_by_text(CLICKED)).to_be_visible(timeout=LONG * 1000)
        history = browser.page.get_by_label("History", exact=True)
        expect(history.locator("li.scaling").filter(has_text=CLICKED)).to_be_visible(timeout=LONG * 1000)
        picture(browser, "scaled")
        assert browser.faults(OURS) == [], "in the dark, with no dialog over it"
        drained_by_click(browser, log, run)
    request = log.scalings(run.run_id)[0]
    assert (request.replicas, request.reason) == (2, CLICKED) and login[0] in request.by, request


def drained_by_click(browser: Browsed, log: LogStore, run: Run) -> None:
    """The whole run, whose source could read more."""
    assert log.group(run.run_id, "ingest").desired is GroupState.RUNNING
    actions = browser.page.get_by_role("group", name="What can be done with the run")
    actions.get_by_role("button", name="Drain ...").click()
    dialog = browser.page.get_by_role("dialog", name="Drain the run of sales_scaled?")
    dialog.get_by_role("button", name="Drain it").click()
    expect(dialog.locator(".said")).to_contain_text("asked to drain")
    picture(browser, "drain")
    dialog.get_by_role("button", name="Close").click()
    assert log.group(run.run_id, "ingest").desired is GroupState.DRAINING
    # Its source waits for the test. Told before the driver has heard of the wish, it would read all that there is.
    has_heard = lambda: log.group(run.run_id, "ingest").state in (GroupState.DRAINING, GroupState.FINISHED)  # noqa: E731
    eventually(has_heard, what="the driver of the source drains", timeout=LONG)


def end_of(person: Person, run_id: str, dag_id: str = CONTROLLER) -> str:
    """How a run of the Controller's DAG, or of another one, has ended."""
    is_over = lambda: person.run_state(dag_id, run_id) in ("success", "failed")  # noqa: E731
    eventually(is_over, what=f"{run_id} ends", timeout=LONG, every=0.3)
    return person.run_state(dag_id, run_id)


class LateInput:
    """Runs of the DAG whose input is late: a file and a folder, which are looked for before the run begins, and a file that
    only the driver looks for."""

    def __init__(self, person: Person, places: Places, folder: Path) -> None:
        self._person, self._places = person, places
        self.folder = folder

    def begin(self, name: str) -> str:
        """How a run of that name ends, with its input in the folder of that name, and what arrives in between."""
        (self.folder / name).mkdir(exist_ok=True)
        given = {"folder": str(self.folder / name), "arrivals": str(self.folder / f"{name}_arrivals")}
        self._person.begin(LATE, name, given)
        return end_of(self._person, name, LATE)

    def attempts(self, name: str) -> dict[str, tuple[int, str]]:
        tasks = {one["task_id"].rpartition(".")[2]: one for one in self._person.tasks(LATE, name)}
        return {task: (tasks[task]["try_number"], tasks[task]["state"]) for task in ("start_run", "all")}

    def written(self) -> dict[str, list[tuple[Any, ...]]]:
        url = self._places.warehouse_url
        return {name: sorted(rows_of(url, f"SELECT n FROM late_{name}")) for name in ("file", "folder", "own")}


def test_input_that_is_late_is_found_by_the_second_attempt_and_blocks_nothing_before(
    person: Person, places: Places, tmp_path: Path
) -> None:
    dag = LateInput(person, places, tmp_path)
    assert dag.begin("never") == "failed"
    assert dag.attempts("never")["start_run"] == (2, "failed")
    said = person.log(LATE, "never", "late.start_run")
    assert said.count(f"source 'file': cannot read Parquet file '{tmp_path}/never/file.parquet'") >= 2, said

    holds = {"start_run": {"file.parquet": [1, 2], "folder/a.parquet": [3, 4]}, "all": {"own.parquet": [5, 6]}}
    for task, files in holds.items():
        for name, numbers in files.items():
            has_numbers(tmp_path / "late_arrivals" / task / name, numbers)
    assert dag.begin("late") == "success"
    assert dag.attempts("late") == {"start_run": (2, "success"), "all": (2, "success")}
    log = open_store(places.log_url, application="logio test")
    known = [one.spec.key.dag_run_id for one in log.list_runs()]
    assert "never" not in known, "nothing was begun that was in the way of the next"
    [run] = [one for one in log.list_runs() if one.spec.key.dag_run_id == "late"]
    assert run.state is RunState.FINISHED and log.group(run.run_id, "all").incarnation == 2
    log.dispose()
    assert f"{tmp_path}/late/own.parquet" in person.log(LATE, "late", "late.all")
    assert dag.written() == {"file": [(1,), (2,)], "folder": [(3,), (4,)], "own": [(5,), (6,)]}


def test_input_that_stays_away_fails_its_task_and_is_used_once_it_is_cleared(
    person: Person, places: Places, tmp_path: Path
) -> None:
    dag = LateInput(person, places, tmp_path)
    for name, numbers in {"file.parquet": [7], "folder/a.parquet": [8]}.items():
        has_numbers(tmp_path / "spent" / name, numbers)
    assert dag.begin("spent") == "failed"
    assert dag.attempts("spent") == {"start_run": (1, "success"), "all": (2, "failed")}
    said = person.log(LATE, "spent", "late.all")
    assert "waits for its input" in said and f"{tmp_path}/spent/own.parquet" in said, said
    has_numbers(tmp_path / "spent" / "own.parquet", [9])
    person.clear(LATE, "spent", "late.all")
    eventually(lambda: person.run_state(LATE, "spent") == "success", what="it is green", timeout=LONG, every=0.3)
    assert dag.written() == {"file": [(7,)], "folder": [(8,)], "own": [(9,)]}
    log = open_store(places.log_url, application="logio test")
    assert [one.spec.key.dag_run_id for one in log.list_runs()].count("spent") == 1
    log.dispose()


def test_a_run_waits_for_its_input_deferred_and_begins_in_the_same_try(
    person: Person, places: Places, tmp_path: Path
) -> None:
    eventually(
        lambda: all(map(person.has_dag, ("late_waits", "late_hurries"))), what="the DAGs are parsed", timeout=LONG
    )
    for name in ("late_waits", "late_hurries"):
        (tmp_path / name).mkdir()
        person.begin(name, name, {"folder": str(tmp_path / name)})

    def started(dag_id: str) -> tuple[str | None, int]:
        tasks = {one["task_id"].rpartition(".")[2]: one for one in person.tasks(dag_id, dag_id)}
        return tasks["start_run"]["state"], tasks["start_run"]["try_number"]

    eventually(lambda: started("late_waits") == ("deferred", 1), what="it waits, deferred", timeout=LONG)
    file = tmp_path / "late_waits" / "file.parquet"
    note = person._call("GET", f"{PREFIX}/api/runs?dag_id=late_waits&dag_run_id=late_waits")
    assert note["runs"] == [] and "waits for its input since" in note["note"] and f"{file} is not there" in note["note"]
    assert not [one for one in logged(places) if one.spec.key.dag_id.startswith("late_w")]

    assert end_of(person, "late_hurries", "late_hurries") == "failed"
    assert started("late_hurries") == ("failed", 2), "each attempt has waited"
    said = person.log("late_hurries", "late_hurries", "hurries.start_run")
    assert said.count("and wait='1s' of the source is over. Nothing was started") >= 2, said

    has_numbers(file, [1, 2])
    assert end_of(person, "late_waits", "late_waits") == "success"
    assert started("late_waits") == ("success", 1)
    assert "The input is there, after" in person.log("late_waits", "late_waits", "waits.start_run")
    assert sorted(rows_of(places.warehouse_url, "SELECT n FROM waits")) == [(1,), (2,)]
    assert [one.spec.key.dag_id for one in logged(places) if one.spec.key.dag_id in ("late_waits", "late_hurries")] == [
        "late_waits"
    ]


def logged(places: Places) -> Sequence[Run]:
    log = open_store(places.log_url, application="logio test")
    try:
        return log.list_runs()
    finally:
        log.dispose()


def has_numbers(file: Path, numbers: list[int]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": numbers}), file)


def task_state(person: Person, task: str, dag_id: str = DAG_ID) -> str | None:
    return person.states(dag_id, RUN_ID).get(task)


def logs_of(places: Places, dag_id: str, run_id: str, task: str) -> str:
    """Of all attempts of a task: one that wakes before Airflow has heard that it was deferred is taken for failed."""
    folder = places.airflow_home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task}"
    return "".join(log.read_text() for log in folder.glob("*.log"))


def is_watched(places: Places, task: str) -> bool:
    """Whether a trigger of this task runs: what a person does to a deferred task before that, no trigger sees."""
    logs = (places.airflow_home / "logs").rglob("*.trigger.*.log")
    text = "".join(log.read_text() for log in logs if f"task_id={task}/" in str(log))
    return ' starting"' in text and "trigger completed" not in text


def pid(log: LogStore, name: str) -> int:
    """The process of the group's driver, once it has registered; else 0."""
    status = group(log, name)
    return status.identity.pid if status.state is GroupState.RUNNING and status.identity is not None else 0
