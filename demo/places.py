"""Where the demonstration keeps everything: folder `.demo` beside the DAGs, and the databases it uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_logio.databases import in_url, sqlite_file, with_absolute_path
from airflow_logio.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Places:
    """`log_url` and `warehouse_url` come from LOGIO_URL and WAREHOUSE_URL; by default they are SQLite files in the folder."""

    folder: Path
    dags: Path
    log_url: str
    warehouse_url: str
    payloads: str | None = None
    """From LOGIO_PAYLOADS; by default a folder beside an SQLite log (None), or in `folder`."""

    @classmethod
    def of_this_clone(cls, environment: Mapping[str, str] = os.environ, *, copies_dags: bool = False) -> Places:
        """Create the folder, with a copy of the DAGs if they are going to be changed. Raises `ConfigurationError` if there
        are no example DAGs."""
        root = Path(__file__).resolve().parents[1]
        dags = root / "dags"
        if not (dags / "logio_sales.py").is_file():
            raise ConfigurationError(f"the demonstration runs from a clone of the repository; there is no {dags}")
        folder = root / ".demo"
        folder.mkdir(mode=0o700, exist_ok=True)
        if copies_dags:
            shutil.rmtree(folder / "dags", ignore_errors=True)
            dags = shutil.copytree(dags, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        log_url = with_absolute_path(environment.get("LOGIO_URL", "")) or f"sqlite:///{in_url(folder / 'logio.db')}"
        return cls(
            folder,
            dags,
            log_url,
            with_absolute_path(environment.get("WAREHOUSE_URL", "")) or f"sqlite:///{in_url(folder / 'warehouse.db')}",
            environment.get("LOGIO_PAYLOADS") or (None if sqlite_file(log_url) else str(folder / "payloads")),
        )

    @property
    def owns_log(self) -> bool:
        """Whether the log is in the folder, where only demonstrations are."""
        file = sqlite_file(self.log_url)
        return file is not None and file.parent == self.folder

    @property
    def airflow_home(self) -> Path:
        return self.folder / "airflow"

    @property
    def airflow_log(self) -> Path:
        return self.folder / "airflow.log"

    @property
    def drivers(self) -> Path:
        """The launcher's work_dir, one folder per run."""
        return self.folder / "drivers"

    @property
    def lake(self) -> Path:
        """Where the folders of `DatasetWriter` are."""
        return self.folder / "lake"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"
