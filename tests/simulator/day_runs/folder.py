"""A folder, or bucket, in which runs publish their days, through the product's own `DayTarget` and `DayClaim`.

Each call is at one instant, but a listing comes in pages. In a folder that several hosts have mounted, a name that one has
put, or removed, may be shown late to another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

import msgspec
import pyarrow as pa

from airflow_logio import DatasetWriter
from airflow_logio.dataflow.writers.action_writers import BEGIN, WriteAction
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.dataflow.writers.folder_files import FolderFiles
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.folder_rules import Age, Effect, RunRecord
from airflow_logio.protocol.writes import CLOSE
from airflow_logio.spark.day_claims import DayClaim
from airflow_logio.spark.published_places import ActionNames, CopyJob, Publication, PublishedPlace
from airflow_logio.spark.publishing import DayTarget
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest
from tests.simulator.day_runs.runs import PIPELINE, Driver, Rows, Run

Ask = Callable[[Callable[[], Any]], Any]
WRITER = "keep"
BEFORE = "before"
"""The run that has published each day by `append`, as one did before days were owned."""


class Watch:
    """Sees what is put and removed, and by which driver, if it is one of a run."""

    def put(self, path: str, content: bytes, driver: Driver | None) -> None: ...

    def removed(self, path: str, content: bytes, driver: Driver | None) -> None: ...

    def look(self) -> None:
        """Something has changed."""


@dataclass(eq=False)
class View:
    """What a host is shown: all that is there but for what is `late`, and `ghosts`, which are gone."""

    late: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)


class Tree:
    """What is there."""

    def __init__(self, chance: Random, late: float, page: int) -> None:
        """`late` is how often another host is shown a name late, `page` how many names a page of a listing has."""
        self.files: dict[str, bytes] = {}
        self.page = page
        self.views: list[View] = []
        self.watch = Watch()
        self._chance = chance
        self._late = late

    def view(self) -> View:
        """Of a host that mounts the folder now."""
        self.views.append(View())
        return self.views[-1]

    def paths(self, view: View | None) -> list[str]:
        if view is None or not (view.late or view.ghosts):
            return sorted(self.files)
        return sorted((self.files.keys() - view.late) | view.ghosts)

    def read(self, path: str, view: View | None) -> bytes:
        if path not in self.files or (view is not None and path in view.late):
            raise FileNotFoundError(path)
        return self.files[path]

    def put(self, path: str, content: bytes, view: View | None, driver: Driver | None) -> None:
        if view is not None:
            view.late.discard(path)
            view.ghosts.discard(path)
        if self.files.get(path) == content:
            return
        self.watch.put(path, content, driver)
        self.files[path] = content
        for other in self._shown_late(view):
            other.late.add(path)
        self.watch.look()

    def remove(self, path: str, view: View | None, driver: Driver | None) -> None:
        if view is not None:
            view.ghosts.discard(path)
        if path not in self.files:
            return
        self.watch.removed(path, self.files[path], driver)
        del self.files[path]
        for other in self.views:
            other.late.discard(path)
        for other in self._shown_late(view):
            other.ghosts.add(path)
        self.watch.look()

    def show(self, share: float) -> None:
        """Time passes: some of the names are shown."""
        for view in self.views:
            for names in (view.late, view.ghosts):
                names -= {name for name in sorted(names) if self._chance.random() < share}

    def _shown_late(self, view: View | None) -> Iterator[View]:
        if not self._late:
            return
        for other in self.views:
            if other is not view and self._chance.random() < self._late:
                yield other


class SteppedFiles(FolderFiles):
    """As one process is shown them: each call, and each page of a listing, is a question of its own."""

    where = "lake/clicks"

    def __init__(self, tree: Tree, ask: Ask, view: View | None, page: int = 1_000) -> None:
        self._tree = tree
        self._ask = ask
        self._view = view
        self._page = page

    def name(self, path: str) -> str:
        return path

    def above(self) -> FolderFiles:
        raise NotImplementedError

    def check(self) -> None:
        """It is there."""

    def is_there(self, path: str) -> bool:
        return bool(self._ask(lambda: self._is_there(path)))

    def names(self, folder: str) -> list[str]:
        below = f"{folder}/"
        return self._listed(lambda: {path[len(below) :].partition("/")[0] for path in self._paths(below)})

    def read(self, path: str) -> bytes:
        return bytes(self._ask(lambda: self._tree.read(path, self._view)))

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        found = self._listed(lambda: set(self._paths(f"{below}/" if below else "")))
        if below and not found:
            raise FileNotFoundError(below)
        yield from self._walked(below, found)

    def links(self, folder: str, names: list[str]) -> list[str]:
        return []

    def _walked(self, folder: str, paths: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
        below = f"{folder}/" if folder else ""
        inside = [path[len(below) :] for path in paths if path.startswith(below)]
        folders = sorted({path.partition("/")[0] for path in inside if "/" in path})
        yield folder, folders, [path for path in inside if "/" not in path]
        for one in folders:
            yield from self._walked(below + one, paths)

    def _paths(self, below: str) -> list[str]:
        return [path for path in self._tree.paths(self._view) if path.startswith(below)]

    def _is_there(self, path: str) -> bool:
        return any(one == path or one.startswith(f"{path}/") for one in self._tree.paths(self._view))

    def _listed(self, names: Callable[[], set[str]]) -> list[str]:
        """In pages, each behind the last name of the one before."""
        found, last = list[str](), ""
        while True:
            page = self._ask(partial(self._page_of, names, last))
            found += page
            if len(page) < self._page:
                return found
            last = page[-1]

    def _page_of(self, names: Callable[[], set[str]], last: str) -> list[str]:
        return sorted(name for name in names() if name > last)[: self._page]


class SteppedPlace(PublishedPlace):
    """As a driver and its executors write there. What they put is whole."""

    def __init__(self, tree: Tree, ask: Ask, view: View, driver: Driver) -> None:
        self.files = SteppedFiles(tree, ask, view, tree.page)
        self._tree = tree
        self._ask = ask
        self._view = view
        self._driver = driver

    def check(self) -> None:
        """Nothing is wrong with it."""

    def prepare(self, folders: Iterable[str], names: ActionNames) -> None:
        """Nothing is left half-written."""

    def put_records(self, names: Iterable[str], folder: str = RUNS) -> None:
        for name in names:
            self._put(f"{folder}/{name}", b"")

    def put_receipt(self, names: ActionNames, receipt: bytes, folder: str = RECEIPTS) -> None:
        self._put(f"{folder}/{names.receipt_name}", receipt)

    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        actions = self._driver.run.actions
        for name, rows in zip(plan.names(), actions[plan.number - 2], strict=True):
            self._put(name, content_of(rows))

    def may_remove(self, folder: str) -> bool:
        return True

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._ask(partial(self._tree.remove, path, self._view, self._driver))

    def close(self) -> None:
        """Nothing is left half-written."""

    def _put(self, path: str, content: bytes) -> None:
        self._ask(lambda: self._tree.put(path, content, self._view, self._driver))


class FolderPlace:
    """The folder with its days. Each driver is on a host of its own."""

    def __init__(self, chance: Random, days: Iterable[str], *, late: float = 0.0, page: int = 1_000) -> None:
        self.now = 0
        self.tree = Tree(chance, late, page)
        self.tree.put(f"{RUNS}/{RunRecord(Age(1, BEFORE), Effect.JOINS).name}", b"", None, None)
        for number, day in enumerate(days, 2):
            self._publish_before(number, day)

    def _publish_before(self, number: int, day: str) -> None:
        """As `append` has."""
        path, rows = f"day={day}/{BEFORE}.{WRITER}.{number:012d}.00000.parquet", rows_before(day)
        self.tree.put(path, content_of(rows), None, None)
        file = {"path": path, "bytes": len(content_of(rows)), "records": len(rows)}
        receipt = {"run": BEFORE, "operator": WRITER, "number": number, "schema": {}, "files": [file]}
        self.tree.put(f"{RECEIPTS}/{BEFORE}.{WRITER}.{number:012d}.json", msgspec.json.encode(receipt), None, None)

    def open(self, driver: Driver) -> None:
        self._target(driver).write_group(self._claim(driver), (_action(driver, 1, {"action": BEGIN}),))

    def close(self, driver: Driver) -> None:
        run = driver.run
        pages = (
            [_action(driver, number, {}, dataset=str(number))] for number, _ in driver.pages()
        )  # read once: no audits
        closing = _action(driver, run.last, {"action": CLOSE})
        self._target(driver).close_group(self._claim(driver), closing, len(run.rows), pages)

    def fill(self, driver: Driver, first: int, last: int) -> None:
        actions = [_action(driver, number, {}, dataset=str(number)) for number in range(max(first, 2), last + 1)]
        if first == 1:
            actions.insert(0, _action(driver, 1, {"action": BEGIN}))
        self._target(driver).write_group(self._claim(driver), actions)

    def end(self, driver: Driver) -> None:
        """Its host shows nothing any more."""
        if driver.kept is not None and driver.kept in self.tree.views:
            self.tree.views.remove(driver.kept)

    def _claim(self, driver: Driver) -> DayClaim:
        if driver.kept is None:
            driver.kept = self.tree.view()
        place = SteppedPlace(self.tree, driver.ask, driver.kept, driver)
        return DayClaim(place, "lake", _identity(driver), driver.run.scope)

    def _target(self, driver: Driver) -> DayTarget:
        run = driver.run
        return DayTarget(
            _writer(run.day, run.fills),
            _identity(driver),
            lambda _, number: dataset_of(run, int(number)),
            _no_job,
            _no_job,
        )


def rows_before(day: str) -> Rows:
    """What a day had before any run owned it."""
    return (-int(day[-2:]), -int(day[-2:]) - 100)


def content_of(rows: Rows) -> bytes:
    return json.dumps(rows).encode()


def dataset_of(run: Run, number: int) -> Dataset:
    """A write action, as its manifest has it."""
    files = tuple(
        DataFile(f"{run.uid}/{number}/{index}", len(content_of(rows)), len(rows), 0, (run.scope,))
        for index, rows in enumerate(run.actions[number - 2])
    )
    return Described("the log", "payloads", Reference("m", 0, 1), Manifest("{}", "", files))


class Described(Dataset):
    """One whose files are only described."""

    def check(self) -> None:
        """They are whole."""


@cache
def _writer(day: str, fills: bool) -> DatasetWriter:
    said: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",)} | ({"switch": "at once"} if fills else {})
    writer = DatasetWriter("lake", "clicks", partition_by=("day",), **said)
    return writer.for_run({"day": day, "day_start": f"{day}T00:00:00+00:00"})


def _identity(driver: Driver) -> WriterIdentity:
    run = driver.run
    age = Owner(run.uid, float(run.ordinal)).started_at
    line = (PIPELINE, run.log, run.ordinal)
    return WriterIdentity(run.uid, driver.token, age, run.given_up, *line, run.takes_over, run.may_be_empty)


_NOTHING = pa.table({})


def _action(driver: Driver, number: int, about: dict[str, Any], dataset: str | None = None) -> WriteAction:
    return WriteAction(driver.run.uid, WRITER, "lake", number, driver.token, _NOTHING, about, dataset=dataset)


def _no_job(*_: object) -> Any:
    raise NotImplementedError
