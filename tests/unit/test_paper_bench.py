"""The evaluation of the paper, as far as it is arithmetic: series divided, results resumed, answers compared, tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import BarContainer

from tests.bench.paper import evaluation, flink_settings, flink_setup
from tests.bench.paper.answer import flaw
from tests.bench.paper.experiments import Experiment, experiments
from tests.bench.paper.plots import draw, failures, normal, said
from tests.bench.paper.results import Result, ResultFile, medians
from tests.bench.paper.scaled import scaled
from tests.bench.paper.series import BY_NAME, SERIES, Series
from tests.bench.paper.tables import tables

NAMES = [series.name for series in SERIES]


def result(experiment: Experiment, seconds: float | None, factor: float = 0.2) -> Result:
    error = "WrongResult: late" if seconds is None else None
    key = experiment.key(factor)
    return Result(key, experiment.series, experiment.kind, factor, seconds, (0.1, 0.2), "now", error=error)


@pytest.mark.parametrize("series", SERIES, ids=NAMES)
def test_at_factor_one_a_series_is_the_paper_s(series: Series) -> None:
    whole = scaled(series, 1.0)
    assert (whole.events, whole.trigger, whole.op2_trigger) == (series.events, series.trigger, series.op2_trigger)
    assert whole.points == series.points
    assert whole.snapshot_seconds == (30 if series.name == "1b-OP3" else 15)
    ends = {"1a": 5, "1b": 5, "1b-OP3": 5, "1c": 10, "2": 5, "2-free": 15, "3a": 10, "3b": 25}
    assert whole.end == ends[series.name]
    assert whole.seconds == 250  # of the five to six minutes that the paper's runs take


@pytest.mark.parametrize("factor", [0.001, 0.01, 0.07, 0.2, 0.5])
@pytest.mark.parametrize("series", SERIES, ids=NAMES)
def test_a_divided_series_makes_at_least_five_events_of_op4_and_keeps_rates(series: Series, factor: float) -> None:
    part = scaled(series, factor)
    assert part.end >= 5
    assert (part.every, part.op3_seconds, part.event_bytes) == (series.every_ms / 1e3, series.op3_ms / 1e3, 10_000)
    assert len(set(part.points)) == 3
    assert part.points == tuple(sorted(part.points))


def test_a_fifth_of_the_first_series_is_twenty_events() -> None:
    part = scaled(BY_NAME["1a"], 0.2)
    assert (part.events, part.trigger, part.end, part.points, part.seconds) == (20, 2, 5, (1, 5, 9), 50)


def test_rows_are_right_only_if_every_event_is_in_them_once() -> None:
    part = scaled(BY_NAME["1b"], 0.01)
    numbers = range(1, 11)
    rows = [(n // 2, 1, n - 2, 2 * n - 1, n * n + (n - 1) ** 2) for n in numbers if n % 2 == 0]
    assert flaw(part, rows) == ""
    assert flaw(part, rows[::-1]) == ""
    assert "not" in flaw(part, [*rows, rows[0]])
    assert "not" in flaw(part, rows[1:])


@pytest.mark.parametrize(("name", "paths"), [("3a", 1), ("2-free", 2)])
def test_where_the_order_is_free_all_rows_together_are_compared(name: str, paths: int) -> None:
    part = scaled(BY_NAME[name], 0.01)
    every = range(1, part.events + 1)
    total, squares = paths * sum(every), paths * sum(n * n for n in every)
    rows = [(n + 1, part.trigger, n, 1, 1) for n in range(part.end - 1)]
    rows.append((part.end, part.trigger, 7, total - len(rows), squares - len(rows)))
    assert flaw(part, rows) == ""
    assert "not" in flaw(part, [*rows[:-1], (*rows[-1][:4], squares)])
    assert "not" in flaw(part, [(1, part.trigger + 1, *rows[0][2:]), *rows[1:]])


def test_what_is_in_the_file_is_not_measured_again_and_what_has_failed_is(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "of" / "results.jsonl")
    one, other, third = list(experiments())[:3]
    file.add(result(one, 51.5))
    file.add(result(other, None))
    with (tmp_path / "of" / "results.jsonl").open("a") as lines:
        lines.write('{"key": "broken off')
    assert file.left([one, other, third], 0.2) == [other, third]
    assert file.left([one], 1.0) == [one]
    assert medians(file.read(), 0.2) == {("1a", "baseline"): 51.5}


def test_each_experiment_has_a_key_of_its_own() -> None:
    every = list(experiments(runs=2))
    assert len({one.key(0.2) for one in every}) == len(every)
    assert [one.kind for one in every[:4]] == ["baseline", "LOG.io", "LOG.io, lineage", "LOG.io, 1 failed"]


FOUND = [
    result(Experiment("1b", plain=True), 50.0),
    result(Experiment("1b"), 50.5),
    result(Experiment("1b", lineage=True), 50.6),
    result(Experiment("1b", flink=True), 52.0),
    result(Experiment("1b-OP3", failures=1), 55.0),
    result(Experiment("1b-OP3", flink=True, failures=2), 60.0),
    result(Experiment("1a", plain=True, event_bytes=10**6), 40.0),
    result(Experiment("1a", event_bytes=10**6), 41.0),
    result(Experiment("1b", plain=True), 1.0, factor=1.0),
]


def test_the_tables_say_percent_of_the_baseline_beside_the_paper_s() -> None:
    text = tables(FOUND, 0.2)
    assert "| 1b: use case 1, 1,000 events | 50.0 | 1.0 | 0.2 | - | 4.0 | 6 | 1.2 | 2.8 |" in text
    ours, paper = "10.0 | - | - | - | - | 20.0 | -", "32 | 47 | 50 | 21 | 39 | 56"
    assert f"| 1b-OP3: use case 1, 1,000 events, OP3 fails | {ours} | {paper} |" in text
    assert "| 1 MB | 40.0 | 2.5 | 1.5 |" in text
    assert "| 1c: use case 1, 5,000 events | - | - | - | - | - | 42.5 | 0.4 | 3 |" in text


def test_the_plot_of_runs_without_failures_has_a_bar_for_what_is_known_and_none_for_the_rest() -> None:
    [axes] = normal(FOUND, 0.2).axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    bars = {
        drawn.get_label(): {round(bar.get_center()[0]): bar.get_height() for bar in drawn.patches}
        for drawn in axes.containers
        if isinstance(drawn, BarContainer)
    }
    assert labels == [name for name in NAMES if name != "1b-OP3"]
    at = labels.index("1b")
    assert bars["LOG.io"] == pytest.approx({at: 1.0})
    assert bars["ABS on Flink"] == pytest.approx({at: 4.0})
    assert (bars["paper: LOG.io"][labels.index("1c")], len(bars["paper: ABS"])) == (42.5, len(labels))


def test_the_plot_of_failures_has_a_picture_for_each_series() -> None:
    every = failures(FOUND, 0.2).axes
    assert [axes.get_title().partition(":")[0] for axes in every] == NAMES
    lines = {line.get_label(): dict(np.asarray(line.get_xydata()).tolist()) for line in every[2].get_lines()}
    assert lines["LOG.io"] == pytest.approx({1: 10.0})
    assert lines["ABS on Flink"] == pytest.approx({2: 20.0})
    assert lines["paper: ABS"] == {1: 21.0, 2: 39.0, 3: 56.0}


def test_plots_are_drawn_of_a_file_that_is_empty_as_well(tmp_path: Path) -> None:
    paths = draw([], 0.2, tmp_path / "plots")
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG"] * 2


@pytest.mark.parametrize(("text", "number"), [("< 1", 1.0), ("2 to 3", 3.0), ("8.43", 8.43), ("-", None)])
def test_what_the_paper_says_as_a_number(text: str, number: float | None) -> None:
    assert said(text) == number


def test_flink_does_what_the_divided_series_says_with_as_many_failures_as_are_wanted() -> None:
    part = scaled(BY_NAME["1a"], 0.2)
    job = flink_settings.job(part, 2, Path("/marks"), "postgresql://postgres@127.0.0.1:5/of_this_run").splitlines()
    said = {
        "shape = linear",
        "events = 20",
        "every = 0.5",
        "op3_seconds = 5.0",
        "end = 5",
        "fails = op4",
        "points = 1,5",
    }
    assert said <= set(job)
    assert "warehouse = jdbc:postgresql://127.0.0.1:5/of_this_run?user=postgres" in job
    cluster = flink_settings.cluster(part, Path("/run"), 7).splitlines()
    assert {"execution.checkpointing.interval: 3000 ms", "jobmanager.rpc.port: 7"} <= set(cluster)
    settings = Path(flink_setup.SOURCES, "paper", "Settings.java").read_text()
    assert {line.partition(" = ")[0] for line in job if f'"{line.partition(" = ")[0]}"' not in settings} == {
        "snapshot_seconds"  # the cluster is told
    }


def test_each_operator_on_flink_has_a_process_of_its_own() -> None:
    assert len(flink_settings.operators("linear")) == len(flink_settings.operators("synchronized")) == 5
    assert {"op3.0", "op3.1", "op5.0"} < set(flink_settings.operators("replicas"))


def test_where_flink_cannot_be_had_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    flink_setup.class_path.cache_clear()
    file = tmp_path / "results.jsonl"
    for one in experiments():
        if not one.flink:
            ResultFile(file).add(result(one, 50.0))
    assert list(evaluation.evaluate(None, 0.2, file, 1, None)) == []  # type: ignore[arg-type]  # nothing is measured
    said = capsys.readouterr().out
    assert "ABS on Flink is not measured: there is no javac; install it (Debian: apt-get install openjdk-17" in said


def test_what_pip_says_is_in_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho no such wheel >&2\nexit 1\n")
    pip.chmod(0o700)
    monkeypatch.setattr(flink_setup, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "javac").symlink_to(pip)
    flink_setup.class_path.cache_clear()
    with pytest.raises(
        flink_setup.NoFlink, match=r"apache-flink-libraries 2\.3\.0 cannot be had .*: no such wheel; let pip"
    ):
        flink_setup.class_path()
