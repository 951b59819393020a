"""The code of a storm's pipeline as an author has it: a module beside a package, in a folder that drivers get a copy of."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "stormy"
HERE, BUNDLE = "tests.support.storm", "tests.support.bundle"
SHIPPED = {HERE: ("shape", "functions", "sources", "outlets", "pipelines"), BUNDLE: ("own_systems",)}
ROOT = Path(__file__).parents[3]


def written(folder: Path, seed: int) -> str:
    """Write it into a new folder; returns the reference of the pipeline."""
    package = folder / PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for home, modules in SHIPPED.items():
        for module in modules:
            text = ROOT.joinpath(*home.split("."), f"{module}.py").read_text()
            for other in SHIPPED:
                text = text.replace(f"from {other}.", f"from {PACKAGE}.")
            (package / f"{module}.py").write_text(text)
    file = folder / f"storm_{seed}.py"
    file.write_text(f"from {PACKAGE}.pipelines import pipeline_of\n\nstorm = pipeline_of({seed})\n")
    return f"{file}:storm"
