"""Broken datasets: their files, their manifests, what removes them, and what publishes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_logio.driver.committer import DatasetRows
from airflow_logio.driver.spark_jobs.frame_jobs import discard
from airflow_logio.spark.chains import Chains, Duplicate, Evaluated, Step
from airflow_logio.spark.published_places import Publication
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads import sweeping
from airflow_logio.systems.payloads.manifests import DataFile, StoredFrame, is_stored_frame
from airflow_logio.systems.payloads.payload_store import EpochPayloads, Payloads
from airflow_logio.testing.simulator.stepwise import Steps, finished
from tests.simulator.lake.evaluating import Evaluating
from tests.simulator.lake.jobs import Piece, SimulatedJobs
from tests.simulator.lake.lake_store import Lake
from tests.simulator.lake.published import PublishedFolder
from tests.simulator.lake.storage import SimulatedStorage, data_file, encoded
from tests.unit.testing.mutants.registry import mutant

WHOLE = "every_manifest_that_the_log_reaches_is_whole"
READ = "nothing_unreachable_is_read"
KEPT = "nothing_goes_that_a_living_row_names"
RIGHT = "destinations_are_those_of_a_run_without_failures"


@mutant("lake", WHOLE, READ)
def commit_before_files_are_durable(patch: pytest.MonkeyPatch) -> None:
    """A task returns its line before its file is synced."""

    def at_once(self: Any, folder: str, piece: Piece) -> Steps[DataFile]:
        path, content = f"{folder}/{self._storage.new_name()}", encoded(piece.records)
        self._storage.begin(path, content)
        yield
        return data_file(path, content, len(piece.records), piece.partition)

    patch.setattr(SimulatedJobs, "_attempt", at_once)


@mutant("lake", WHOLE, READ)
def manifest_before_files(patch: pytest.MonkeyPatch) -> None:
    """The manifest is written when the job begins, of what its tasks are going to write."""

    def first(self: Any, purpose: str, pieces: Sequence[Piece]) -> Steps[list[DataFile]]:
        folder = self._payloads.new_folder(purpose)
        yield
        return [
            data_file(f"{folder}/{n}.parquet", encoded(piece.records), len(piece.records), piece.partition)
            for n, piece in enumerate(pieces)
        ]

    patch.setattr(SimulatedJobs, "_files", first)


@mutant("effects", RIGHT)
def manifest_lists_losers_of_retries(patch: pytest.MonkeyPatch) -> None:
    """What a job has written is what is in its folder, whichever attempt of a task has put it there."""

    def listed(self: Any, purpose: str, pieces: Sequence[Piece]) -> Steps[list[DataFile]]:
        folder = self._payloads.new_folder(purpose)
        files = []
        for piece in pieces:
            self._written += 1
            for _ in range(2 if self._written % 3 == 0 else 1):
                files.append((yield from self._attempt(folder, piece)))
        return files

    patch.setattr(SimulatedJobs, "_files", listed)


@mutant("lake", "no_file_has_two_owners", KEPT)
def two_rows_name_one_dataset(patch: pytest.MonkeyPatch) -> None:
    """A write action names the files of the event that it was made of."""
    patch.setattr(EpochPayloads, "own", lambda _self, _where, _purpose, dataset: dataset)


@mutant("lake", "no_file_has_two_owners", KEPT)
def what_a_chain_has_made_belongs_to_all(patch: pytest.MonkeyPatch) -> None:
    """Every row that asks gets what a chain has materialized, not only the first one."""
    dataset = DatasetRows.dataset

    def shared(self: Any, payload: Any, where: str, purpose: str) -> Any:
        return payload.materialized if isinstance(payload, Evaluated) else dataset(self, payload, where, purpose)

    patch.setattr(DatasetRows, "dataset", shared)


@mutant("effects", RIGHT)
def input_is_not_materialized_for_actions(patch: pytest.MonkeyPatch) -> None:
    """A function that runs actions gets what is evaluated again for its result."""
    patch.setattr(Chains, "_needs_files", lambda self, receiver: len(self._members[receiver.operator].outputs) > 1)


@mutant("lake", "no_file_has_two_owners", KEPT)
def events_are_not_copied_for_their_writer(patch: pytest.MonkeyPatch) -> None:
    """What is written as it is names the files of the event, which goes when it is acknowledged."""
    done = Evaluating._done

    def shared(self: Any, step: Step) -> Steps[Any]:
        if isinstance(step, Duplicate):
            yield
            return step.dataset
        return (yield from done(self, step))

    patch.setattr(Evaluating, "_done", shared)


@mutant("lake", "no_group_is_parked")
def paths_without_incarnation_and_epoch(patch: pytest.MonkeyPatch) -> None:
    """All incarnations of a group write into one folder."""
    patch.setattr(Payloads, "epoch", lambda self, uid, group, *_: EpochPayloads(self, f"{uid}/{group}/1/0"))


@mutant("lake", KEPT)
def sweep_without_asking_the_log(patch: pytest.MonkeyPatch) -> None:
    """A fenced incarnation has left garbage only, a sweep believes."""

    def everything(payloads: Any, _store: Any, _run: Any, folder: str, paths: list[str]) -> int:
        payloads.discard(sorted(paths, key=sweeping._names_files), folder)
        return len(paths)

    patch.setattr(sweeping, "_sweep", everything)


@mutant("lake", KEPT)
def sweep_keeps_manifests_only(patch: pytest.MonkeyPatch) -> None:
    """The sweep keeps what rows name, not what that names."""
    patch.setattr(sweeping, "_named_by", lambda _payloads, _named: set())


@mutant("effects", KEPT)
def sweep_knows_no_stored_effects(patch: pytest.MonkeyPatch) -> None:
    """The sweep keeps the files of manifests, not the events that a stored effect is still to give."""
    named_by = sweeping._named_by

    def of_manifests(payloads: Any, named: Iterable[str]) -> set[str]:
        return named_by(payloads, [path for path in named if not is_stored_frame(path)])

    patch.setattr(sweeping, "_named_by", of_manifests)


@mutant("lake", WHOLE, READ, KEPT)
def sweep_of_what_lives(patch: pytest.MonkeyPatch) -> None:
    """A driver sweeps its own incarnation: files of jobs under way, which the log does not know yet."""
    patch.setattr(Lake, "_below", lambda self, group: self._world.incarnations[group] + 1)


@mutant("lake", "only_what_lineage_names_is_left")
def nothing_swept_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """The end of a run sweeps what fenced incarnations have left, not what the last ones have."""
    patch.setattr(sweeping, "CONCLUDED", ())
    patch.setattr(Lake, "_below", lambda self, group: self._world.incarnations[group])


@mutant("effects", KEPT)
def used_up_effect_takes_its_events_along(patch: pytest.MonkeyPatch) -> None:
    """When its last event is in the log, a stored effect goes with all its files, those of its events, too."""
    patch.setattr(StoredFrame, "own_files", StoredFrame.files)


@mutant("effects", RIGHT)
def read_again_for_the_log(patch: pytest.MonkeyPatch) -> None:
    """The log gets what a read answers when its job has ended: obtained again, and not what the job has used."""
    logged = Evaluating.logged

    def again(self: Any, effects: Any) -> Any:
        asked = []
        for read in logged(self, effects):
            system = self._driver.world.systems[read.connection]
            system.reads += 1
            answer = [[row, system.reads] for row in range(read.records)]
            job = self._jobs.materialized("a read", f"datasets/again/{system.reads}", answer)
            asked.append(replace(read, payload=finished(job, sys.maxsize)))
        return asked

    patch.setattr(Evaluating, "logged", again)


@mutant("effects", WHOLE, READ, KEPT)
def files_of_a_read_go_with_its_job(patch: pytest.MonkeyPatch) -> None:
    """A job that has ended removes what its reads have stored, although the log is to name it."""
    logged = Evaluating.logged

    def without_files(self: Any, effects: Any) -> Any:
        discard(self.payloads, effects.values())
        return logged(self, effects)

    patch.setattr(Evaluating, "logged", without_files)


@mutant("lake", "files_go_before_what_names_them")
def retention_removes_manifests_first(patch: pytest.MonkeyPatch) -> None:
    """A removal takes the manifest first: if it is cut short, it is not known any more which files were to go."""

    def reversed_order(self: Any, refs: Iterable[str]) -> None:
        paths = [Reference.parse("a row", ref).path for ref in refs]
        files = self._files_of(paths)
        self._storage.remove(paths)
        self._storage.remove(files)

    patch.setattr(Payloads, "remove", reversed_order)


@mutant("lake", "a_receipt_names_files_that_are_there")
def receipt_before_files(patch: pytest.MonkeyPatch) -> None:
    """A receipt appears while the files are still being copied."""
    receipt = PublishedFolder._receipt

    def published(self: Any, key: Any, token: int, uid: str, writes: Any, read: Any) -> Steps[bool]:
        for write, dataset in writes:
            plan = Publication(uid, key[0], write.number, token, dataset.manifest)
            yield from receipt(self, plan, key, write.header)
        return True

    patch.setattr(PublishedFolder, "published", published)


@mutant("lake", "an_action_is_published_once", "what_is_published_is_what_receipts_name")
def names_of_who_publishes(patch: pytest.MonkeyPatch) -> None:
    """What is published is named by who executes the action, not by the action alone: copies of a zombie stay beside."""
    patch.setattr(
        Publication,
        "stem",
        property(lambda self: f"{self.run_uid}.{self.operator}.{self.token:x}.{self.number:012d}"),
    )


@mutant("lake", "what_is_published_never_changes", "a_receipt_names_files_that_are_there")
def names_by_chance(patch: pytest.MonkeyPatch) -> None:
    """Each copy of a file has a name of its own: what is copied again stays beside what the receipt names then."""
    named = count()
    names = Publication.names
    known: dict[int, Sequence[str]] = {}

    def by_chance(self: Any) -> Sequence[str]:
        if id(self) not in known:
            known[id(self)] = [name.replace(".parquet", f".{next(named)}.parquet") for name in names(self)]
            held.append(self)
        return known[id(self)]

    held: list[Any] = []
    patch.setattr(Publication, "names", by_chance)


@mutant("lake", "no_group_is_parked", READ, WHOLE)
def link_without_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A second name of a file is given after the commit, when the first one may be gone."""
    patch.setattr(SimulatedStorage, "link", lambda _self, _source, _target: None)
