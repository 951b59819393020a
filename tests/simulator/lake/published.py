"""A folder that a `DatasetWriter` publishes datasets in: whole files under final names, and hidden ones (ADR-83)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.spark.published_places import Publication
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import Manifest
from airflow_logio.testing.simulator.external_systems import AppliedWrite, Attempt, Client, ExternalSystem, Guarantee
from airflow_logio.testing.simulator.stepwise import Steps, finished
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.lake.storage import Record, decoded, encoded

Read = Callable[[Dataset], list[Record]]


@dataclass
class PublishedFolder(ExternalSystem):
    """What it has applied is what its receipts name."""

    guarantee: Guarantee = Guarantee.IDEMPOTENT
    files: dict[str, bytes] = field(default_factory=dict)
    """Path below the folder → content."""
    _copies: int = 0
    """Hidden names that were given."""

    def begin(self, client: Client) -> Attempt:
        return Publishing(self, client)

    def published(
        self,
        key: WriterKey,
        token: int,
        run_uid: str,
        writes: Sequence[tuple[PendingWrite, Dataset]],
        read: Read,
    ) -> Steps[bool]:
        """Publish write actions in order, as `DatasetTarget` does; a step ends with each name that appears."""
        for write, dataset in writes:
            plan = Publication(run_uid, key[0], write.number, token, dataset.manifest)
            self._clean(plan)
            yield
            contents = [read(one_file(dataset, index)) for index in range(len(dataset.manifest.files))]
            for name, records in zip(plan.names(), contents, strict=True):
                yield from self._put(plan, name, encoded(records))
                yield
            yield from self._receipt(plan, key, write.header)
        return True

    def _clean(self, plan: Publication) -> None:
        """What replaced drivers have left half-written goes."""
        for path in [path for path in self.files if plan.is_left_over(_name(path))]:
            del self.files[path]

    def _put(self, plan: Publication, path: str, content: bytes) -> Steps[None]:
        folder, _, name = path.rpartition("/")
        self._copies += 1
        hidden = f"{folder}/{plan.hidden(name)}{self._copies:032x}".lstrip("/")
        self.files[hidden] = content
        yield
        if self.files.pop(hidden, None) is None:
            raise LogInconsistent(f"{hidden} is gone: a successor has cleaned up")
        self.what_is_published_never_changes(path, content)
        self.files[path] = content

    def _receipt(self, plan: Publication, key: WriterKey, header: Mapping[str, Any]) -> Steps[None]:
        yield from self._put(plan, f"{RECEIPTS}/{plan.stem}.json", plan.receipt())
        paths = [str(file["path"]) for file in msgspec.json.decode(plan.receipt())["files"]]
        self.a_receipt_names_files_that_are_there(plan.stem, paths)
        done = self.applied.setdefault(key, [])
        if plan.number > (done[-1].number if done else 0):
            records = sorted(record for path in paths for record in decoded(self.files[path]))
            done.append(AppliedWrite(plan.number, header, encoded(records)))
        yield

    # --- invariants ---------------------------------------------------------------------------------------------------

    def what_is_published_never_changes(self, path: str, content: bytes) -> None:
        """Every driver that executes an action makes the same files of the same names."""
        if self.files.get(path, content) != content:
            raise Violation("what_is_published_never_changes", f"{path} has another content than before")

    def a_receipt_names_files_that_are_there(self, stem: str, paths: Sequence[str]) -> None:
        missing = [path for path in paths if path not in self.files]
        if missing:
            raise Violation("a_receipt_names_files_that_are_there", f"the receipt of {stem} names {missing[0]}")

    def conclude(self) -> None:
        """At the end of a run."""
        self.what_is_published_is_what_receipts_name()
        self.an_action_is_published_once()

    def an_action_is_published_once(self) -> None:
        """Under one name, whichever driver has executed it."""
        seen: set[tuple[str, int]] = set()
        for receipt in self._receipts():
            action = (receipt["operator"], receipt["number"])
            if action in seen:
                raise Violation(
                    "an_action_is_published_once", f"write action {action[1]} of {action[0]} has two receipts"
                )
            seen.add(action)

    def what_is_published_is_what_receipts_name(self) -> None:
        named = {str(file["path"]) for receipt in self._receipts() for file in receipt["files"]}
        published = {
            path for path in self.files if not path.startswith(f"{RECEIPTS}/") and not _name(path).startswith(".")
        }
        if wrong := sorted(named ^ published):
            raise Violation(
                "what_is_published_is_what_receipts_name",
                f"{wrong[0]} is {'named, and not there' if wrong[0] in named else 'there, and no receipt names it'}",
            )

    def _receipts(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(content)
            for path, content in self.files.items()
            if path.startswith(f"{RECEIPTS}/") and not _name(path).startswith(".")
        ]


class Publishing:
    """An attempt of a client to publish what it has taken: copies that are under way."""

    def __init__(self, folder: PublishedFolder, client: Client) -> None:
        client.watch.before_write(client.key, client.taken)
        epoch = client.datasets
        writes = [(write, epoch.dataset(write)) for write in client.taken]
        self._copies = folder.published(client.key, client.token(), client.run_uid, writes, epoch.records)

    def advance(self, steps: int) -> bool:
        return finished(self._copies, steps) is not None

    def break_off(self) -> bool:
        """What is copied is left behind, and copied again."""
        return False


def one_file(dataset: Dataset, index: int) -> Dataset:
    """One file of a dataset."""
    manifest = dataset.manifest
    one = Manifest(manifest.schema, manifest.arrow, (manifest.files[index],))
    return Dataset(dataset.where, dataset.root, dataset.reference, one)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
