"""Campaigns: counted once, resumable, on several processes; and users' own pipelines from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_logio.cli import simulate as command
from airflow_logio.cli.app import commands
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.testing import campaign as campaigns
from airflow_logio.testing.campaign import CHUNK, Campaign
from airflow_logio.testing.scenario_lookup import load_scenario, scenario_names
from airflow_logio.testing.simulator.drains import DRAIN_EVERY
from airflow_logio.testing.simulator.simulated_logs import close_logs
from airflow_logio.testing.simulator.simulation import MIN_COMMITS, MIN_EVENTS
from tests.simulator import ALL, SCENARIOS, reference
from tests.simulator.own_pipeline import OWN_PIPELINE
from tests.unit.testing.mutants import MUTANTS


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / f"own_{tmp_path.name}.py"
    path.write_text(OWN_PIPELINE)
    return path


def test_schedules_are_spread_over_scenarios_without_gap_or_overlap() -> None:
    campaign = Campaign(["a", "b", "c"], 3 * CHUNK + 7, seed=1_000)
    seeds: dict[str, list[int]] = {}
    for chunk in campaign.chunks():
        seeds.setdefault(chunk.scenario, []).extend(range(chunk.first, chunk.first + chunk.count))
    assert {name: len(found) for name, found in seeds.items()} == {"a": CHUNK + 3, "b": CHUNK + 2, "c": CHUNK + 2}
    assert all(found == list(range(1_000, 1_000 + len(found))) for found in seeds.values())


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    first = Campaign([reference("idempotent")], 3)
    campaigns.run(first, state=state)
    second = Campaign([reference("idempotent")], 5)
    second.resume(state)
    assert [(chunk.first, chunk.count) for chunk in second.chunks()] == [(3, 2)]
    campaigns.run(second, state=state)
    whole = Campaign([reference("idempotent")], 5)
    campaigns.run(whole)
    name = reference("idempotent")
    mine, undivided = second.tallies[name], whole.tallies[name]
    assert (mine.schedules, mine.commits, mine.crashes, mine.sites) == (
        undivided.schedules,
        undivided.commits,
        undivided.crashes,
        undivided.sites,
    )
    assert list(second.chunks()) == []


def test_the_state_of_another_campaign_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    Campaign([reference("linear")], 5, seed=3).save(state)
    with pytest.raises(ConfigurationError, match=r"another campaign: tests.simulator:SCENARIOS.linear from seed 3"):
        Campaign([reference("linear")], 5).resume(state)
    state.write_text("[]")
    with pytest.raises(ConfigurationError, match="not a state file"):
        Campaign([reference("linear")], 5).resume(state)


def test_a_reference_means_one_scenario_or_a_collection(own: Path) -> None:
    assert scenario_names(ALL) == [reference(name) for name in SCENARIOS]
    assert scenario_names(reference("linear")) == [reference("linear")]
    assert scenario_names(f"{own}:mine") == [f"{own}:mine"]
    assert scenario_names(f"{own}:both") == [f"{own}:both.small", f"{own}:both.made"]
    assert [load_scenario(name).scenario.name for name in scenario_names(f"{own}:both")] == ["mine", "mine"]
    with pytest.raises(ConfigurationError, match="has no 'linaer'; it has linear, synchronized"):
        load_scenario(reference("linaer"))
    with pytest.raises(ConfigurationError, match="'linear' does not name a pipeline; expected path"):
        scenario_names("linear")


@pytest.mark.parametrize("attribute", ["mine", "scenario"])
def test_a_pipeline_of_ones_own(own: Path, attribute: str) -> None:
    simulator = load_scenario(f"{own}:{attribute}")
    assert set(simulator.reference().observed.ports) == {"read.out", "sums.out"}
    assert simulator.reference().observed.writes["save>warehouse"]
    for seed in range(10):
        figures, failure = simulator.run(seed)
        assert failure is None
        assert figures.crashes >= 3


def test_what_cannot_be_simulated_is_refused(own: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a int; the simulator runs"):
        load_scenario(f"{own}:number")
    with pytest.raises(ConfigurationError, match="is missing; the simulator runs"):
        load_scenario(f"{own}:nothing")


def test_an_operator_that_needs_spark_is_refused() -> None:
    from airflow_logio.testing import pipeline_scenario
    from pipelines.sales import sales

    with pytest.raises(PipelineDefinitionError, match="'hourly' has mode executors, which needs a Spark session"):
        pipeline_scenario(sales)


def test_logio_simulate_reports_and_exits(own: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = CliRunner().invoke(
        commands(), ["simulate", f"{own}:mine", "--schedules", "4", "--seed", "9", "--json", str(report)]
    )
    assert result.exit_code == 0, result.output
    assert "4 schedules; 0 violations; 4 now in " in result.output
    written = json.loads(report.read_text())
    assert (written["schedules"], written["drained"], written["violations"]) == (4, 0, 0)
    (tally,) = written["tallies"].values()
    assert tally["crashes"] >= 12
    assert sum(tally["sites"].values()) >= tally["crashes"]


def test_logio_simulate_says_how_many_schedules_are_shorter(tmp_path: Path) -> None:
    """Drained schedules need not be as long as the others: the report tells them apart."""
    report = tmp_path / "report.json"
    drained = 2 * DRAIN_EVERY - 1
    arguments = [
        "simulate",
        reference("idempotent"),
        "--schedules",
        "2",
        "--seed",
        str(drained - 1),
        "--json",
        str(report),
    ]
    result = CliRunner().invoke(commands(), arguments)
    assert result.exit_code == 0, result.output
    assert "2 schedules (1 of them drained, and shorter); 0 violations; " in result.output
    assert "mean of all schedules (fewest of one that was not drained)" in result.output
    written = json.loads(report.read_text())
    assert (written["schedules"], written["drained"]) == (2, 1)
    (tally,) = written["tallies"].values()
    assert tally["fewest_events"] >= MIN_EVENTS and tally["fewest_commits"] >= MIN_COMMITS


def test_logio_simulate_tells_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rate, violations, the failing seed and its story, which that seed alone tells again, to the letter."""
    campaigns.simulator_of.cache_clear()
    simulator = campaigns.simulator_of(reference("linear"), "memory")
    simulator.reference()
    MUTANTS["marker_not_checked"].install(monkeypatch)
    failed = [seed for seed in range(20) if simulator.run(seed)[1] is not None]
    first = failed[0]
    result = CliRunner().invoke(commands(), ["simulate", reference("linear"), "--schedules", "20"])
    again = CliRunner().invoke(commands(), ["simulate", reference("linear"), "--schedules", "1", "--seed", str(first)])
    campaigns.simulator_of.cache_clear()
    assert (result.exit_code, again.exit_code) == (1, 1)
    assert re.search(
        rf"^20 schedules \(.*\); {len(failed)} violations; 20 now in [\d.]+ s, \d+ per second$", result.output, re.M
    ), result.output
    seeds = ", ".join(map(str, failed[:10]))
    assert f"{reference('linear')}: seeds {seeds} fail; the first one, shrunk:" in result.output
    assert f"{reference('linear')}: seeds {first} fail; the first one, shrunk:" in again.output
    story, told_again = (output.partition("shrunk:\n")[2].splitlines() for output in (result.output, again.output))
    assert "incarnation 1 is claimed" in story[0]
    assert story[-2].startswith("  Then: ") and " — violated: " in story[-2]
    assert "--not-deterministic checks its crash safety alone" in story[-1]
    assert told_again == story


def test_schedules_run_on_the_database_of_a_connection(monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> None:
    monkeypatch.setenv("LOGIO_CONN_SCRATCH", postgres_url)
    result = CliRunner().invoke(commands(), ["simulate", reference("linear"), "--schedules", "1", "--log", "scratch"])
    close_logs()
    assert result.exit_code == 0, result.output


def test_a_connection_is_never_given_as_a_url() -> None:
    result = CliRunner().invoke(
        commands(), ["simulate", reference("linear"), "--log", "postgresql://me:secret@here/log"]
    )
    assert isinstance(result.exception, ConfigurationError)
    assert "named by its id" in str(result.exception) and "secret" not in str(result.exception)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_was_run_is_counted_every_second(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """A pipeline may take seconds for each schedule: progress, results and the state file do not wait for a chunk."""
    monkeypatch.setattr(campaigns, "SLICE_SECONDS", 0.0)
    campaign, seen = Campaign([reference("idempotent"), reference("linear")], 8), list[tuple[str, int, int]]()
    campaigns.run(
        campaign,
        processes=processes,
        progress=lambda chunk, tally: seen.append((chunk.scenario, chunk.first, tally.schedules)),
    )
    assert sorted(seen) == [(reference(name), seed, 1) for name in ("idempotent", "linear") for seed in range(4)]
    whole = Campaign([reference("idempotent"), reference("linear")], 8)
    monkeypatch.undo()
    campaigns.run(whole)
    assert campaign.done == whole.done and list(campaign.chunks()) == []
    for name, tally in whole.tallies.items():
        found = campaign.tallies[name]
        assert (found.steps, found.events, found.fewest_events, found.sites) == (
            tally.steps,
            tally.events,
            tally.fewest_events,
            tally.sites,
        )


def test_progress_and_the_first_failure_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the output is no terminal as well."""
    monkeypatch.setattr(campaigns, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(command, "LINE_SECONDS", 0.0)
    mutant = MUTANTS["marker_not_checked"]
    scenario = reference(mutant.scenario)
    with monkeypatch.context() as broken:
        campaigns.simulator_of.cache_clear()
        campaigns.simulator_of(scenario, "memory").reference()
        mutant.install(broken)
        result = CliRunner().invoke(commands(), ["simulate", scenario, "--schedules", "20", "--no-story"])
    assert result.exit_code == 1
    told = result.stderr.splitlines()
    assert told[0] == f"{scenario}: a run without failures first"
    (failure,) = [number for number, line in enumerate(told) if re.match(rf"{scenario}: seed \d+ fails: ", line)]
    progress = [line for line in told if " of 20 schedules, " in line]
    assert len(progress) == 20 and failure < len(told) - 1
    assert re.search(r"^1 of 20 schedules, [\d.]+/s, (no|1) violations?$", progress[0])
    assert re.search(r", [1-9]\d* violations$", progress[-1])
