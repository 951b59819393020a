"""`logio simulate`: runs pipelines in the deterministic simulator, in thousands of schedules with crashes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from airflow_logio.cli.common import err, out, pairs, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.commands import counted
from airflow_logio.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_logio.testing.campaign import Campaign, Chunk, Tally

COMPARISONS = ("destinations_are_those_of_a_run_without_failures", "replicas_make_what_one_would_make")
"""What a pipeline violates that makes another result each time."""
LINE_SECONDS = 5.0
"""Between two lines on progress where the output is no terminal."""
_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[rate]}"),
    TimeRemainingColumn(),
    TextColumn("{task.fields[wrong]}", style="red"),
)


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:name or module:name of a pipeline, a Scenario, or a collection (name → one of them); "
            "file.py:collection.name for one of a collection",
            metavar="PIPELINE",
        ),
    ],
    schedules: Annotated[int, typer.Option("--schedules", "-n", min=1, help="Schedules in all")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; each schedule has the next one")] = 0,
    processes: Annotated[int, typer.Option(min=0, help="Processes; 0 for one per core")] = 1,
    store: Annotated[
        str,
        typer.Option(
            "--log",
            help="memory; or sqlite, or the connection id of a PostgreSQL database, each held equal to a log in memory",
            metavar="LOG",
        ),
    ] = "memory",
    param: Annotated[list[str] | None, typer.Option("--param", help="Run parameter of a pipeline, name=value")] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Day or hour of the run of a pipeline that has one for each")
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic/--not-deterministic",
            help="Whether a pipeline makes the same result each time; if not, it is held against its log alone",
        ),
    ] = True,
    state: Annotated[
        Path | None, typer.Option(help="Save progress in this file, and resume from it if it exists")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the report to this file")] = None,
    story: Annotated[
        bool, typer.Option(help="Shrink the first failing schedule of each scenario and tell its story")
    ] = True,
) -> None:
    """Crash a pipeline in thousands of ways, and compare each result with a failure-free run.

    One process executes the real protocol for all groups of a schedule, step by step. A seed decides which driver is
    killed, delayed, repeated or replaced; the same seed gives the same schedule. Exits with 1 if anything went wrong.
    """
    from airflow_logio.testing import campaign as campaigns
    from airflow_logio.testing.scenario_lookup import scenario_names
    from airflow_logio.testing.simulator.simulated_logs import LOGS

    log = store if store in LOGS else ConnectionUrls.load(warn).get(store)
    campaign = campaigns.Campaign(
        scenario_names(target),
        schedules,
        seed,
        log,
        tuple(pairs("--param", param or ()).items()),
        deterministic,
        partition,
    )
    if state is not None:
        campaign.resume(state)
    started, before = time.monotonic(), campaign.ran
    interrupted = False
    with Progress(*_COLUMNS, console=err, disable=not err.is_terminal) as bar:
        shown = _Shown(campaign, bar)
        try:
            for name in campaign.scenarios:
                shown.checks(name)
                _check(campaign, name)
            started = time.monotonic()
            campaigns.run(campaign, processes=processes or os.cpu_count() or 1, state=state, progress=shown.advance)
        except KeyboardInterrupt:
            interrupted = True
            if state is not None:
                campaign.save(state)
    seconds = time.monotonic() - started
    _report(campaign, campaign.ran - before, seconds)
    if json_path is not None:
        report = {**campaign.as_json(), "seconds": seconds, "schedules_now": campaign.ran - before}
        json_path.write_text(json.dumps(report, indent=2))
    if story:
        _tell(campaign)
    if interrupted:
        err.print("interrupted" + ("" if state is None else f"; `--state {state}` resumes from here"), markup=False)
        raise typer.Exit(130)
    raise typer.Exit(1 if campaign.violations else 0)


def _check(campaign: Campaign, name: str) -> None:
    """Do the failure-free run first: an error that it shows needs no seed."""
    from airflow_logio.testing.simulator.violation import Violation

    try:
        campaign.simulator(name).reference()
    except Violation as error:
        raise ConfigurationError(f"{name}: even a run without failures is wrong: {error}") from error


class _Shown:
    """A progress bar with schedules per second, or a line now and then if the output is no terminal. Each scenario's first
    failure is told at once."""

    def __init__(self, campaign: Campaign, bar: Progress) -> None:
        self._campaign = campaign
        self._bar = bar
        self._before = campaign.ran
        self._task = bar.add_task("", total=campaign.schedules, completed=campaign.ran, rate="", wrong="")
        self._failed = set[str]()
        self._began = time.monotonic()
        self._told = float("-inf")

    def checks(self, scenario: str) -> None:
        """Before the run without failures, which may take long."""
        self._bar.update(self._task, description=f"{scenario}, without failures")
        self._tell(f"{scenario}: a run without failures first")
        self._began = time.monotonic()

    def advance(self, chunk: Chunk, tally: Tally) -> None:
        campaign = self._campaign
        if tally.failures and chunk.scenario not in self._failed:
            self._failed.add(chunk.scenario)
            first = tally.failures[0]
            err.print(f"{chunk.scenario}: seed {first.seed} fails: {first.invariant}: {first.what}", markup=False)
        rate = f"{(campaign.ran - self._before) / max(time.monotonic() - self._began, 1e-9):.3g}/s"
        wrong = counted(campaign.violations, "violation") if campaign.violations else ""
        self._bar.update(self._task, description="schedules", advance=tally.schedules, rate=rate, wrong=wrong)
        self._tell(f"{campaign.ran:,} of {campaign.schedules:,} schedules, {rate}, {wrong or 'no violations'}")

    def _tell(self, line: str) -> None:
        now = time.monotonic()
        if not err.is_terminal and now - self._told >= LINE_SECONDS:
            self._told = now
            err.print(line, markup=False)


def _report(campaign: Campaign, ran: int, seconds: float) -> None:
    table = Table("scenario", box=None, header_style="bold")
    for name in ("schedules", "per CPU s", "drained", "events", "commits", "crashes", "violations"):
        table.add_column(name, justify="right")
    for name, tally in campaign.tallies.items():
        rate = tally.schedules / tally.seconds if tally.seconds else 0.0
        table.add_row(
            name,
            f"{tally.schedules:,}",
            f"{rate:.0f}",
            f"{tally.drained:,}",
            _mean(tally, "events"),
            _mean(tally, "commits"),
            _mean(tally, "crashes"),
            f"{tally.violations:,}",
            style="red" if tally.violations else None,
        )
    out.print(table)
    if not campaign.deterministic:
        out.print(
            "not deterministic: only the invariants of the log are checked, and that destinations have what the log says; "
            "results are not compared with a run without failures",
            markup=False,
        )
    if campaign.drained:
        out.print("events, commits, crashes: mean of all schedules (fewest of one that was not drained)", markup=False)
    out.print(_sites(list(campaign.tallies.values())), markup=False)
    rate = ran / seconds if seconds else 0.0
    now = f"{ran:,} now in {seconds:.1f} s, {rate:.0f} per second"
    drained = f" ({campaign.drained:,} of them drained, and shorter)" if campaign.drained else ""
    out.print(f"{campaign.ran:,} schedules{drained}; {campaign.violations:,} violations; {now}", markup=False)


def _mean(tally: Tally, what: str) -> str:
    """The mean of all schedules, and the fewest of one that was not drained."""
    return f"{getattr(tally, what) / max(tally.schedules, 1):,.0f} (≥ {getattr(tally, f'fewest_{what}'):,})"


def _sites(tallies: Sequence[Tally]) -> str:
    total: dict[str, int] = {}
    for tally in tallies:
        for site, hits in tally.sites.items():
            total[site] = total.get(site, 0) + hits
    return "crash sites: " + ", ".join(f"{site} {hits:,}" for site, hits in sorted(total.items()))


def _tell(campaign: Campaign) -> None:
    """The story of the first failure of each scenario."""
    from airflow_logio.testing.simulator.shrink import shrink
    from airflow_logio.testing.simulator.story import tell

    for name, tally in campaign.tallies.items():
        if not tally.failures:
            continue
        seeds = ", ".join(str(failure.seed) for failure in tally.failures[:10])
        out.print(f"\n{name}: seeds {seeds} fail; the first one, shrunk:", style="bold", markup=False)
        simulator = campaign.simulator(name)
        _, failure = simulator.run(tally.failures[0].seed)
        if failure is None:
            out.print(f"  seed {tally.failures[0].seed} no longer fails", markup=False)
            continue
        for sentence in tell(simulator, shrink(simulator, failure)):
            out.print(f"  {sentence}", markup=False)
        if failure.invariant in COMPARISONS:
            out.print(
                "  If this pipeline makes a different result each time (random, uuid, now), --not-deterministic checks its "
                "crash safety alone.",
                markup=False,
            )
