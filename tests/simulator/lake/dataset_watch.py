"""Invariants of datasets: what the log reaches is whole and stays, and no driver reads what it does not reach."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import (
    DataFile,
    StoredFrame,
    is_manifest,
    is_stored_frame,
    manifest_of,
    stored_frame_of,
)
from airflow_logio.testing.memory_log.tables import ABSENT, Body, Tables
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.lake.storage import SimulatedStorage, damage, decoded, encoded


class DatasetWatch:
    """What rows of the log name, and what those name."""

    def __init__(self, tables: Tables, storage: SimulatedStorage) -> None:
        """From now on, what happens to this store is watched."""
        self._tables = tables
        self._storage = storage
        storage.removing = self._removing
        self._owners: dict[str, str] = {}
        """Path → the reference in the log that reaches it."""
        self._named: dict[str, Sequence[str]] = {}
        """Reference in the log → paths that it reaches."""
        self._effects: dict[str, StoredFrame] = {}
        """Path of a stored effect that the log names → what it says."""
        self._ever: set[str] = set()
        """References that the log has ever named."""
        self._awaited: dict[str, str] = {}
        """Path that only a stored effect reaches → the manifest of the event to come, or the effect."""
        self._contents: dict[str, bytes] = {}
        self._added: list[str] = []
        self._gone: list[str] = []

    def close(self) -> None:
        """Stop watching."""
        self._storage.removing = lambda _: None

    # --- what a transaction changed -----------------------------------------------------------------------------------

    def see_body(self, before: Any, after: Any) -> None:
        """A row of EVENT_DATA has changed."""
        if before is not ABSENT and before.ref is not None:
            self._gone.append(before.ref)
        if after is not ABSENT and after.ref is not None:
            self._added.append(after.ref)

    def see(self) -> None:
        """At the end of a transaction."""
        if not self._added and not self._gone:
            return
        added, gone, self._added, self._gone = self._added, self._gone, [], []
        for ref in gone:
            if ref in added:
                continue
            if self._effects.pop(_path(ref), None) is not None:
                self._await_no_more(_path(ref))
            for path in self._named.pop(ref, ()):
                self._owners.pop(path, None)
        for ref in added:
            if ref not in self._named:
                self._reach(ref)
            elif ref not in gone:
                self.no_file_has_two_owners(ref, [_path(ref)])

    def content(self, body: Body) -> bytes | None:
        """The records of a body, in an order of their own."""
        if body.ref is None:
            return body.body
        if body.ref not in self._contents:
            self._contents[body.ref] = self._records(body.ref)
        return self._contents[body.ref]

    def _records(self, ref: str) -> bytes:
        path = _path(ref)
        if not is_manifest(path):
            return b""
        files = manifest_of(path, self._read(ref)).files
        self.every_manifest_that_the_log_reaches_is_whole(path, files)
        return encoded(sorted(record for file in files for record in decoded(self._storage.files[file.path].content)))

    def _reach(self, ref: str) -> None:
        self._ever.add(ref)
        self._await_no_more(ref)
        path, data = _path(ref), self._read(ref)
        files: Sequence[DataFile] = ()
        if is_manifest(path):
            files = manifest_of(path, data).files
        elif is_stored_frame(path):
            effect = self._effects[path] = stored_frame_of(path, data)
            files = effect.files()
            for part in effect.parts:
                if part.manifest in self._ever:
                    continue  # its event came with the effect, or before a row of it was put again
                if part.manifest:
                    self._read(part.manifest)
                    self._awaited[_path(part.manifest)] = part.manifest
                self._awaited |= dict.fromkeys((file.path for file in part.files), part.manifest or path)
        self.every_manifest_that_the_log_reaches_is_whole(path, files)
        reached = [path] if is_stored_frame(path) else [path, *(file.path for file in files)]
        self.no_file_has_two_owners(ref, reached)
        self._named[ref] = reached
        self._owners.update(dict.fromkeys(reached, ref))

    def _await_no_more(self, key: str) -> None:
        for path in [path for path, awaited in self._awaited.items() if awaited == key]:
            del self._awaited[path]

    def _read(self, ref: str) -> bytes:
        """A body, a manifest or a stored effect that the log reaches."""
        reference = Reference.parse("a row", ref)
        file = self._storage.files.get(reference.path)
        whole = file is not None and file.durable
        if file is None or not whole or zlib.crc32(file.content) != reference.checksum:
            raise Violation(
                "every_manifest_that_the_log_reaches_is_whole",
                f"the log names {reference.path}, which is {'damaged' if file else 'missing'}",
            )
        return file.content

    # --- the invariants -----------------------------------------------------------------------------------------------

    def every_manifest_that_the_log_reaches_is_whole(self, path: str, files: Sequence[DataFile]) -> None:
        for file in files:
            if wrong := damage(self._storage.files.get(file.path), file):
                raise Violation("every_manifest_that_the_log_reaches_is_whole", f"{path}: {wrong}")

    def no_file_has_two_owners(self, ref: str, reached: Sequence[str]) -> None:
        for path in reached:
            if path in self._owners:
                raise Violation("no_file_has_two_owners", f"{path} is named by {ref} and by {self._owners[path]}")

    def _removing(self, path: str) -> None:
        self.nothing_goes_that_a_living_row_names(path)
        self.files_go_before_what_names_them(path)

    def nothing_goes_that_a_living_row_names(self, path: str) -> None:
        """A stored effect has what no event of it has had yet; without manifests of their own, all of its files."""
        if path in self._owners or path in self._awaited:
            raise Violation("nothing_goes_that_a_living_row_names", f"{path} goes, and rows of the log need it")

    def discards(self, driver: SimulatedDriver, ref: str) -> None:
        """A driver is about to discard a stored effect, whose row goes afterwards: all its events have been in the log."""
        path = _path(ref)
        effect = self._effects.get(path)
        if effect is None:
            return
        if missing := [part for part in effect.parts if part.manifest and part.manifest not in self._ever]:
            raise Violation(
                "nothing_goes_that_a_living_row_names",
                f"{driver.plan.name} discards {path}, and {len(missing)} events of it were never in the log",
            )
        del self._effects[path]
        self._owners.pop(path, None)
        self._await_no_more(path)

    def files_go_before_what_names_them(self, path: str) -> None:
        """So that a removal that was cut short can be repeated."""
        if not is_manifest(path):
            return
        left = [file.path for file in manifest_of(path, self._storage.files[path].content).files]
        if left := [one for one in left if one in self._storage.files]:
            raise Violation("files_go_before_what_names_them", f"{path} goes before {left[0]}")

    def nothing_unreachable_is_read(
        self, driver: SimulatedDriver, dataset: Dataset, file: DataFile, wrong: str
    ) -> None:
        """Checked as a driver reads a file of a dataset: what the log reaches, or what this driver has written."""
        own = file.path.startswith(f"{driver.world.run.uid}/{driver.plan.name}/{driver.number}/")
        reached = own or file.path in self._owners or file.path in self._awaited
        if not driver.is_replaced and (wrong or not reached):
            said = wrong or "no row names it"
            raise Violation("nothing_unreachable_is_read", f"{driver.plan.name} reads {dataset.where}: {said}")

    def only_what_lineage_names_is_left(self, storage: SimulatedStorage, references: Collection[str]) -> None:
        """After a run and the collection of its garbage.

        `references` are those of the log: of two, the other one has a clock of its own, by which lineage may be young.
        """
        here = {body.ref: body.kept for body in self._tables.bodies.values() if body.ref is not None}
        named = {path for ref, kept in here.items() if kept for path in self._named.get(ref, ())}
        for path in (_path(ref) for ref in references if ref not in here):
            files = manifest_of(path, storage.files[path].content).files if is_manifest(path) else ()
            named |= {path, *(file.path for file in files)}
        if left := sorted(storage.files.keys() - named):
            raise Violation("only_what_lineage_names_is_left", f"{len(left)} files, one is {left[0]}")


def _path(ref: str) -> str:
    return Reference.parse("a row", ref).path
