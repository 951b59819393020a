"""The wheel as people install it, away from this repository: what it announces, its commands, and the DAGs that rest on it.

The environment is new. To stay quick it borrows the dependencies of the one that runs these tests: `.ci/wheel` installs the
wheel with dependencies of its own instead, and names that environment's Python in LOGIO_WHEEL_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from airflow_logio import __version__
from tests.simulator.own_pipeline import OWN_PIPELINE

ROOT = Path(__file__).parents[3]
PARSED = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import BundleDagBag
bag = BundleDagBag(dag_folder=sys.argv[1], bundle_path=Path(sys.argv[1]))
import airflow_logio
print(json.dumps({"errors": bag.import_errors, "dags": sorted(bag.dags), "from": airflow_logio.__file__}))
"""
ANNOUNCED = """
import json
from importlib.metadata import distribution
here = distribution("airflow-logio")
print(json.dumps({point.group: point.load().__module__.split(".")[:2] for point in here.entry_points}))
"""


class Installed:
    """An environment that has the wheel, and a folder in which nothing of the repository is found."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.programs = python.parent
        self.folder = folder
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self._environment = {
            **kept, "HOME": str(folder), "AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "XDG_CONFIG_HOME": str(folder / ".config"), "COLUMNS": "200",
        }  # fmt: skip

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints. It must succeed."""
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            capture_output=True, text=True, check=False, cwd=self.folder, env=self._environment, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    given = os.environ.get("LOGIO_WHEEL_PYTHON")
    return Installed(Path(given) if given else borrowing(folder), folder)


def borrowing(folder: Path) -> Path:
    """The Python of a new environment with the wheel in it, and with all but this package from the one that runs.

    Python reads no .pth files in a folder that a .pth file names, so the editable installation is not found.
    """
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def airflow(installed: Installed, *arguments: str) -> str:
    """As the program `airflow` does; the environment that lends Airflow keeps the program to itself."""
    return installed.run("python", "-m", "airflow", *arguments)


def test_airflow_knows_the_provider(installed: Installed) -> None:
    (found,) = json.loads(airflow(installed, "providers", "get", "airflow-logio", "--output", "json"))
    assert (found["Provider"], found["Version"]) == ("airflow-logio", __version__)


def test_the_entry_points_are_those_of_the_wheel(installed: Installed) -> None:
    assert json.loads(installed.run("python", "-c", ANNOUNCED)) == {
        "console_scripts": ["airflow_logio", "cli"],
        "apache_airflow_provider": ["airflow_logio", "get_provider_info"],
        "airflow.plugins": ["airflow_logio", "ui"],
    }


def test_the_command_makes_a_log_and_simulates_a_pipeline(installed: Installed) -> None:
    """The first needs the migrations, which are found as files; neither needs a server. The pipeline is a user's."""
    assert "exactly-once" in installed.run("logio", "--help")
    installed.run("logio", "db", "upgrade")
    assert (installed.folder / ".logio" / "logio.db").exists()
    (installed.folder / "mine.py").write_text(OWN_PIPELINE)
    assert "3 schedules" in installed.run("logio", "simulate", "mine.py:mine", "--schedules", "3")


def test_the_page_comes_built(installed: Installed) -> None:
    """Nothing of Node is needed: the wheel has the files, with the licences of what is in them."""
    program = (
        "from airflow_logio.ui.page_places import FOLDER, served; print(*served(), (FOLDER / 'LICENSES.txt').is_file())"
    )
    plugin, alone, licences = installed.run("python", "-c", program).split()
    assert (plugin.startswith("plugin-"), alone.startswith("alone-"), licences) == (True, True, "True")


def test_the_dags_parse(installed: Installed) -> None:
    found = json.loads(installed.run("python", "-c", PARSED, str(ROOT / "dags")).splitlines()[-1])
    assert found["errors"] == {}
    assert found["dags"] == sorted(path.stem for path in (ROOT / "dags").glob("logio_*.py"))
    assert not Path(found["from"]).is_relative_to(ROOT / "airflow_logio")
