"""What drivers are given of a folder, and of an installation: what the pipeline imports, and nothing else."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent
from airflow_logio.launch import bundle, code_bundle
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, collect, from_archive

DAG_FOLDER: Mapping[str, str] = {
    "pipelines/__init__.py": "",
    "pipelines/sales.py": "import rates\nfrom . import sums\nfrom common.text import title\nimport json\n",
    "pipelines/sums.py": "def total():\n    from units import euro\n    return euro\n",
    "pipelines/prices.csv": "1;2\n",
    "pipelines/sql/find.sql": "SELECT 1",
    "pipelines/.secret": "hidden",
    "pipelines/__pycache__/sales.cpython-311.pyc": "compiled",
    "common/__init__.py": "",
    "common/text.py": "title = str.title\n",
    "rates.py": "import json\n",
    "units.py": "euro = 1\n",
    "json.py": "raise ImportError('the standard library has this')\n",
    "another_dag.py": "from airflow.sdk import DAG\n",
    "warehouse.csv": "x" * 1000,
    "unused/__init__.py": "",
}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_of_a_dag_folder_what_the_pipeline_imports_is_shipped_data_files_included(tmp_path: Path) -> None:
    found = collect(PipelineRef("pipelines.sales", "sales", written(tmp_path, DAG_FOLDER)))
    assert found.is_shipped
    assert set(found.files) == {
        "pipelines/__init__.py",
        "pipelines/sales.py",
        "pipelines/sums.py",
        "pipelines/prices.csv",
        "pipelines/sql/find.sql",
        "common/__init__.py",
        "common/text.py",
        "rates.py",
        "units.py",
    }


def test_of_a_folder_that_is_no_package_everything_in_it_is_shipped(tmp_path: Path) -> None:
    files = {"flows/sales.py": "import flows.sums", "flows/sums.py": "", "flows/data.csv": "1", "other.py": ""}
    found = collect(PipelineRef("flows.sales", "sales", written(tmp_path, files)))
    assert set(found.files) == {"flows/sales.py", "flows/sums.py", "flows/data.csv"}
    with zipfile.ZipFile(io.BytesIO(found.archive())) as archive:
        assert "flows/" in archive.namelist(), "Python finds a folder without __init__.py in a zip by its own entry"


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    written(tmp_path, {"flows/__init__.py": "", "flows/sales.py": ""})
    (tmp_path / "flows" / "again").symlink_to(tmp_path / "flows")
    found = collect(PipelineRef("flows.sales", "sales", tmp_path))
    assert set(found.files) == {"flows/__init__.py", "flows/sales.py"}


def test_a_database_in_use_is_no_code(tmp_path: Path) -> None:
    names = ["sales.py", "logio.db", "logio.db-wal", "logio.db-shm", "rates.db"]
    written(tmp_path, {f"flows/{name}": "" for name in names})
    found = collect(PipelineRef("flows.sales", "sales", tmp_path))
    assert set(found.files) == {"flows/sales.py", "flows/rates.db"}


def test_of_an_installed_pipeline_its_own_package_is_shipped(tmp_path: Path) -> None:
    files = {
        "shop/__init__.py": "",
        "shop/sales.py": "import pyarrow, other",
        "shop/rates.csv": "1",
        "pyarrow/__init__.py": "",
        "other/__init__.py": "",
        "company/pipelines/__init__.py": "",
        "company/pipelines/sales.py": "",
        "company/elsewhere/__init__.py": "",
        "alone.py": "",
    }
    root = written(tmp_path / "site-packages", files)
    assert set(collect(PipelineRef("shop.sales", "sales", root)).files) == {
        "shop/__init__.py",
        "shop/sales.py",
        "shop/rates.csv",
    }
    of_namespace = collect(PipelineRef("company.pipelines.sales", "sales", root))
    assert set(of_namespace.files) == {"company/pipelines/__init__.py", "company/pipelines/sales.py"}
    assert set(collect(PipelineRef("alone", "sales", root)).files) == {"alone.py"}


def test_an_installed_package_with_compiled_modules_is_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_bundle, "MOST_BYTES", 10)
    files = {"shop/__init__.py": "", "shop/sales.py": "x" * 100, "shop/fast.cpython-311-x86_64-linux-gnu.so": ""}
    found = collect(PipelineRef("shop.sales", "sales", written(tmp_path / "site-packages", files)))
    assert not found.is_shipped
    assert len(found.digest) == 32, "still, a change of it is noticed"


def test_an_installed_module_is_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "site-packages", {"installed_shop/__init__.py": "", "installed_shop/sales.py": ""})
    terminal = tmp_path / "terminal"
    terminal.mkdir()
    monkeypatch.chdir(terminal)
    monkeypatch.syspath_prepend(root)
    assert bundle.parse_ref("installed_shop.sales:sales").bundle_root == root
    assert bundle.parse_ref("nowhere.sales:sales").bundle_root == terminal
    written(terminal, {"installed_shop/sales.py": ""})
    assert bundle.parse_ref("installed_shop.sales:sales").bundle_root == terminal


def test_a_module_of_this_package_is_not_shipped() -> None:
    root = Path(code_bundle.__file__).parents[2]
    found = collect(PipelineRef("airflow_logio.testing.campaign", "sales", root))
    assert (found.files, found.is_shipped) == ({}, False)


def test_too_much_is_refused_with_the_files_that_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_bundle, "MOST_BYTES", 2**20)
    written(tmp_path, {"pipelines/sales.py": "", "pipelines/history.csv": "x" * 2**20, "pipelines/days.csv": "x" * 100})
    with pytest.raises(ConfigurationError) as caught:
        collect(PipelineRef("pipelines.sales", "sales", tmp_path))
    for words in ("pipelines.sales:sales", "at most 1 MiB", "pipelines/history.csv (1.0 MiB), pipelines/days.csv"):
        assert words in str(caught.value)


def test_a_pipeline_in_a_zip_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="into a folder that is no zip file"):
        collect(PipelineRef("pipelines.sales", "sales", tmp_path / "dags.zip"))


def test_the_digest_depends_on_names_and_contents_and_on_nothing_else(tmp_path: Path) -> None:
    def digest(folder: str, **changed: str) -> str:
        files = {"sales.py": "import rates", "rates.py": "euro = 1"} | {f"{n}.py": text for n, text in changed.items()}
        return collect(PipelineRef("sales", "sales", written(tmp_path / folder, files))).digest

    assert digest("one") == digest("two") == digest("one", unused="1")
    assert len({digest("one"), digest("three", rates="euro = 2"), digest("four", sales="import rates ")}) == 3
    assert CodeBundle({"a": b"bc"}).digest != CodeBundle({"ab": b"c"}).digest


def test_an_archive_comes_back_as_it_was(tmp_path: Path) -> None:
    found = collect(PipelineRef("pipelines.sales", "sales", written(tmp_path / "dags", DAG_FOLDER)))
    same = from_archive(found.archive(), found.digest)
    assert same.files == found.files
    same.write(tmp_path / "copy")
    assert collect(PipelineRef("pipelines.sales", "sales", tmp_path / "copy")).digest == found.digest


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "a/../../outside.py"])
def test_an_archive_reaches_no_file_outside_its_folder(name: str) -> None:
    wrong = CodeBundle({name: b"print()"})
    with pytest.raises(LogInconsistent, match="a file outside its folder"):
        from_archive(wrong.archive(), wrong.digest)


def test_an_archive_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    large = CodeBundle({"sales.py": bytes(10_000)})
    monkeypatch.setattr(code_bundle, "MOST_BYTES", 9_999)
    with pytest.raises(LogInconsistent, match="damaged: it would have 10,000 bytes"):
        from_archive(large.archive(), large.digest)


def test_damage_of_an_archive_is_noticed() -> None:
    found = CodeBundle({"sales.py": b"price = 1\n" * 50})
    archive = found.archive()
    for damaged in (b"", archive[: len(archive) // 2], CodeBundle({"sales.py": b"price = 2\n"}).archive()):
        with pytest.raises(LogInconsistent, match="damaged"):
            from_archive(damaged, found.digest)
    for place in range(0, len(archive), 7):
        flipped = archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]
        try:
            assert from_archive(flipped, found.digest).files == found.files
        except LogInconsistent:
            continue
