"""The plots of docs/performance.md: percent more than the baseline, measured here and as the paper says.

``python -m tests.bench.paper.plots FILE FACTOR FOLDER`` draws those of a file of results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.paper.experiments import SAME_AS, Experiment
from tests.bench.paper.results import Result, ResultFile, medians, more
from tests.bench.paper.series import SERIES, Published, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Percents = Sequence[float | None]
"""None: not measured, or the paper says nothing."""

_LOGIO, _ABS = "#0072B2", "#D55E00"
_HERE, _PAPER = {"alpha": 1.0}, {"alpha": 0.35}
STYLES: dict[str, dict[str, Any]] = {
    "LOG.io": {"color": _LOGIO, **_HERE},
    "ABS on Flink": {"color": _ABS, **_HERE},
    "paper: LOG.io": {"color": _LOGIO, **_PAPER},
    "paper: ABS": {"color": _ABS, **_PAPER},
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FAILURES = (1, 2, 3)


def draw(results: Iterable[Result], factor: float, folder: Path) -> list[Path]:
    """Both plots, as PNG files in the folder."""
    found = list(results)
    drawn = {"paper-normal.png": normal(found, factor), "paper-failures.png": failures(found, factor)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(folder / name, dpi=130)
    return [folder / name for name in drawn]


def normal(results: Iterable[Result], factor: float) -> Figure:
    """Without failures: a group of bars for each series."""
    from matplotlib.figure import Figure

    found = medians(results, factor)
    shown = [series for series in SERIES if series.name not in SAME_AS]
    bars: dict[str, Percents] = {
        "LOG.io": [more(found, Experiment(series.name)) for series in shown],
        "ABS on Flink": [more(found, Experiment(series.name, flink=True)) for series in shown],
        "paper: LOG.io": [said(series.published.normal) for series in shown],
        "paper: ABS": [said(series.published.abs_normal) for series in shown],
    }
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(bars)
    for number, (name, percents) in enumerate(bars.items()):
        places = [at + (number - 1.5) * width for at, one in enumerate(percents) if one is not None]
        heights = [one for one in percents if one is not None]
        drawn = axes.bar(places, heights, width, label=name, **STYLES[name])
        axes.bar_label(drawn, fmt="%.1f", fontsize=6, padding=1)
    axes.set_xticks(range(len(shown)), [series.name for series in shown])
    axes.set_title("Nothing fails", fontsize=10)
    _finish(axes)
    axes.legend(fontsize=8, frameon=False)
    return figure


def failures(results: Iterable[Result], factor: float) -> Figure:
    """With one, two and three: a small plot for each series."""
    from matplotlib.figure import Figure

    found = medians(results, factor)
    figure = Figure(figsize=(11, 5), layout="constrained")
    grid = figure.subplots(2, (len(SERIES) + 1) // 2, sharex=True)
    for axes, series in zip(grid.flat, SERIES, strict=True):
        ours = [more(found, Experiment(series.name, failures=number)) for number in _FAILURES]
        flink = [more(found, Experiment(series.name, flink=True, failures=number)) for number in _FAILURES]
        _lines(axes, series, ours, flink, series.published)
    grid.flat[0].legend(fontsize=7, frameon=False)
    figure.supxlabel("failures", fontsize=9)
    return figure


def _lines(axes: Axes, series: Series, ours: Percents, flink: Percents, paper: Published) -> None:
    lines = {
        "LOG.io": ours,
        "ABS on Flink": flink,
        "paper: LOG.io": [said(text) for text in paper.failures],
        "paper: ABS": [said(text) for text in paper.abs_failures],
    }
    for name, percents in lines.items():
        known = [(number, one) for number, one in zip(_FAILURES, percents, strict=True) if one is not None]
        axes.plot(*zip(*known, strict=True) if known else ([], []), "o-", markersize=4, label=name, **STYLES[name])
    axes.set_title(f"{series.name}: {series.fails.upper()} fails", fontsize=9)
    axes.set_xticks(_FAILURES)
    axes.set_ylim(bottom=0)
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set_ylabel("% more than the baseline", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def said(text: str) -> float | None:
    """What the paper writes, as a number: of "2 to 3" and "< 1" the highest; None for "-"."""
    numbers = [float(one) for one in _NUMBER.findall(text)]
    return max(numbers, default=None)


if __name__ == "__main__":
    for path in draw(ResultFile(Path(sys.argv[1])).read(), float(sys.argv[2]), Path(sys.argv[3])):
        print(path)
