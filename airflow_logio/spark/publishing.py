"""Publishing a dataset into a folder: the write actions of a `DatasetWriter` (ADR-83, ADR-91, ADR-124)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step
from airflow_logio.dataflow.writers.bucket_urls import SCHEME, check_place
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    WriteRefused,
)
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.folder_rules import NamedFile
from airflow_logio.spark.day_claims import DayClaim, RunsClaim
from airflow_logio.spark.folder_claims import FolderClaim
from airflow_logio.spark.lake_audits import Ask, ask
from airflow_logio.spark.local_place import LocalPlace
from airflow_logio.spark.object_place import ObjectPlace
from airflow_logio.spark.published_places import (
    ActionNames,
    ClosingNames,
    CopyJob,
    FillingNames,
    Publication,
    PublishedPlace,
    records_outside,
    said_of_others,
)
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.inspection import Finding
from airflow_logio.systems.payloads.dataset import Dataset


class DatasetTarget:
    """Executes the write actions of one writer of `run`. `dataset` finds the dataset of a reference, `copy` is
    `copied_by_spark`; `given_up` are the runs in whose place this one has begun."""

    unavailable: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        writer: DatasetWriter,
        run: Owner,
        dataset: Callable[[str, str], Dataset],
        copy: CopyJob,
        *,
        given_up: tuple[str, ...] = (),
    ) -> None:
        self._writer = writer
        self._run = run
        self._dataset = dataset
        self._copy = copy
        self._given_up = given_up

    @contextmanager
    def connect(self, url: str) -> Iterator[FolderClaim]:
        """The run's claim at what the connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""
        claim = claim_of(self._writer, url, self._run, self._given_up)
        try:
            yield claim
        finally:
            claim.place.close()

    def write_group(self, client: FolderClaim, actions: Sequence[WriteAction]) -> None:
        """Publish the actions, in order. Doing it again makes the same files. Raises `WriteRefused`, `ConfigurationError`,
        `ExternalUnavailable`, `LogInconsistent`."""
        for action in actions:
            with asked(self._writer, f"{_where(action)} cannot be written: "):
                self._execute(client, action)

    def _execute(self, claim: FolderClaim, action: WriteAction) -> None:
        where = _where(action)
        if action.is_opening:
            self._begin(claim, ActionNames(action.run_uid, action.operator, action.number, action.token))
        elif action.dataset is None:
            raise LogInconsistent(f"{where} has no dataset in the log")
        else:
            self._publish(claim, action, where, self._dataset(where, action.dataset))

    def _begin(self, claim: FolderClaim, plan: ActionNames) -> None:
        """The write action that a run begins with. Its receipt says that it was done: what has come since is no matter."""
        place = claim.place
        if not place.files.is_there(f"{RECEIPTS}/{plan.receipt_name}"):
            claim.begin()
        place.prepare((RECEIPTS,), plan)
        claim.put()
        place.put_receipt(plan, plan.receipt_of({"begins": self._writer.on_new_run, "files": []}))
        claim.clear()

    def _publish(self, claim: FolderClaim, action: WriteAction, where: str, dataset: Dataset) -> None:
        plan = Publication(action.run_uid, action.operator, action.number, action.token, dataset.manifest)
        place, partitions = claim.place, plan.partitions()
        claim.check_partitions(set(partitions.values()))
        place.prepare((RECEIPTS, *sorted(set(partitions.values()))), plan)
        claim.put()
        try:
            place.put_files(where, plan, dataset.paths(), self._copy)
        except ConfigurationError:
            with suppress(OSError):
                claim.confirm(partitions)  # a younger run may have removed what is not seen
            raise
        crash_here(CrashPoint.IN_PUBLICATION)
        claim.confirm(partitions)
        place.put_receipt(plan, plan.receipt())
        claim.clear(partitions.values())


Pages = Iterable[Sequence[WriteAction]]
"""Write actions in the order of their numbers, read from the log a part at a time, as often as they are asked for."""


class DayTarget:
    """Executes the write actions of a writer that owns a part of a folder, for a run: an opening, and all others with the
    closing one, or each by itself where the day is filled at once. `ask` asks its audits. As `DatasetTarget` else."""

    unavailable: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        writer: DatasetWriter,
        run: WriterIdentity,
        dataset: Callable[[str, str], Dataset],
        copy: CopyJob,
        ask: Ask,
    ) -> None:
        self._writer = writer
        self._run = run
        self._dataset = dataset
        self._copy = copy
        self._ask = ask

    @contextmanager
    def connect(self, url: str) -> Iterator[DayClaim]:
        """The run's claim. Raises `ConfigurationError`, `ExternalUnavailable`."""
        claim = part_of(self._writer, url, self._run)
        try:
            yield claim
        finally:
            claim.place.close()

    def write_group(self, client: DayClaim, actions: Sequence[WriteAction]) -> None:
        """The opening action; and those behind it, if the run fills its day at once. Doing it again changes nothing. Raises
        as `close_group`."""
        for action in actions:
            if not action.is_opening and not self._writer.fills_at_once:
                raise LogInconsistent(f"{_where(action)} of a day is not held for its closing one")
            with asked(self._writer, f"{_where(action)} cannot be written: "):
                if self._writer.fills_at_once:
                    self._fill(client, action)
                else:
                    client.begin()

    def _fill(self, claim: DayClaim, action: WriteAction) -> None:
        """One write action of a run that fills its day at once. The receipt of the opening one hides the old day, and names
        no file."""
        names = FillingNames(action.run_uid, action.operator, action.number, action.token, claim.mine)
        if not claim.has_put(names):
            files: Sequence[NamedFile] = ()
            if action.is_opening:
                claim.begin()
            else:
                claim.look()
                files = self._put(claim, action)
                crash_here(CrashPoint.IN_PUBLICATION)
            claim.put_receipt(names, files, has_records=True)  # its opening one has emptied the day
        if action.is_opening:
            claim.clear()

    def close_group(self, client: DayClaim, closing: WriteAction, records: int, pages: Pages) -> None:
        """Publish what is held, `records` in all, and switch the day. Doing it again makes the same files.

        Raises `WriteRefused`, `ConfigurationError`, `ExternalUnavailable`, `LogInconsistent`, and what reading pages raises.
        """
        what = f"{_where(closing)} cannot be written: "
        has_records = records > 0 or self._run.may_be_empty or self._writer.empty == "replace"
        with asked(self._writer, what):
            is_closed = client.is_closed()
            if not is_closed:
                client.check_files(has_records=has_records)
        if not is_closed:
            self._audit(client, what, pages)
            # Reading pages is outside: the caller waits for a log that is unavailable.
            files = [file for page in pages for action in page for file in self._put(client, action)]
            crash_here(CrashPoint.IN_PUBLICATION)
            with asked(self._writer, what):
                names = ClosingNames(closing.run_uid, closing.operator, closing.number, closing.token, client.mine)
                client.put_receipt(names, files, has_records=has_records)
        with asked(self._writer, what):
            client.clear()

    def _audit(self, claim: DayClaim, what: str, pages: Pages) -> None:
        """Before a file is put. Raises `WriteRefused` for the first audit that finds something. If nothing is held, there are
        no columns, and none is asked: `empty` has decided."""
        if not self._writer.audits:
            return
        actions = [action for page in pages for action in page]
        with asked(self._writer, what):
            datasets = [self._dataset_of(action) for action in actions]
            for audit, faults in ask(self._writer.audits, datasets, self._ask) if datasets else ():
                raise claim.found_at_fault(audit, faults)

    def _dataset_of(self, action: WriteAction) -> Dataset:
        if action.dataset is None:
            raise LogInconsistent(f"{_where(action)} has no dataset in the log")
        return self._dataset(_where(action), action.dataset)

    def _put(self, claim: DayClaim, action: WriteAction) -> Sequence[NamedFile]:
        with asked(self._writer, f"{_where(action)} cannot be written: "):
            dataset = self._dataset_of(action)
            plan = Publication(action.run_uid, action.operator, action.number, action.token, dataset.manifest)
            self._check_own(plan)
            claim.place.prepare(sorted(set(plan.partitions().values())), plan)
            try:
                claim.place.put_files(_where(action), plan, dataset.paths(), self._copy)
            except ConfigurationError:
                with suppress(OSError):
                    claim.look()  # a younger run may have removed what is not seen
                raise
        return plan.files()

    def _check_own(self, plan: Publication) -> None:
        """Raises `WriteRefused` for records of other days, which were refused before they were logged."""
        if self._writer.by and (others := records_outside(self._writer.scope, plan.manifest)):
            raise WriteRefused(said_of_others(self._writer.scope, others))


def _where(action: WriteAction) -> str:
    return f"write action {action.number} of {action.operator!r}"


def place_of(writer: DatasetWriter, url: str) -> PublishedPlace:
    """The folder of a writer, below what its connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""
    kind = ObjectPlace if url.startswith(SCHEME) else LocalPlace
    return kind(writer.connection, url, writer.folder)


def claim_of(writer: DatasetWriter, url: str, run: Owner, given_up: tuple[str, ...] = ()) -> FolderClaim:
    """The claim of a run at what the connection of a writer names. Raises `ConfigurationError`, `ExternalUnavailable`."""
    return FolderClaim(place_of(writer, url), writer, run, given_up)


def part_of(writer: DatasetWriter, url: str, run: WriterIdentity) -> DayClaim:
    """The claim of a run at what it owns there. Raises as `claim_of`."""
    kind = RunsClaim if writer.supersedes else DayClaim
    return kind(place_of(writer, url), writer.connection, run, writer.scope)


@contextmanager
def asked(writer: DatasetWriter, what: str = "") -> Iterator[None]:
    """What the file system or object store of a writer says, as `ConfigurationError` if waiting does not mend it, else as
    `ExternalUnavailable`."""
    named = f"connection {writer.connection!r}"
    try:
        yield
    except (OSError, LogUnavailable) as error:
        if isinstance(error, OSError) and is_lasting(error):
            raise ConfigurationError(f"{named}: {what}{error}{next_step(error)}") from error
        raise ExternalUnavailable(f"{named}: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{named}: {what}{error}") from error


# --- before a run: is the folder as its writer expects it -------------------------------------------------------------

_NEXT = Owner("", 2.0**33)
"""A run that begins after all others."""


def inspect_folders(pipeline: Pipeline, urls: Mapping[str, str]) -> Iterator[Finding]:
    """What is found of the folder of each `DatasetWriter`, for a run that would begin now."""
    for name, writer in pipeline.operators.items():
        if isinstance(writer, DatasetWriter):
            what = f"writer {name!r}, folder {writer.folder or '.'!r} of {writer.connection!r}"
            try:
                _inspect(writer, urls[writer.connection])
            except LogioError as error:
                yield Finding(what, str(error))
            except (OSError, ValueError) as error:
                yield Finding(what, f"{type(error).__name__}: {error}")
            else:
                yield Finding(what)


def check_not_replaced(writer: DatasetWriter, url: str, run: WriterIdentity) -> None:
    """Raises `WriteRefused` if a newer run has taken over the folder or partitions of it, so that this run could write there
    no more, `ExternalUnavailable` if the file system does not answer, `ConfigurationError`."""
    if writer.owns:
        day = part_of(writer, url, run)
        with asked(writer):
            if writer.fills_at_once or not day.is_closed():  # what it has closed it does not close again
                day.check_not_replaced()
        return
    claim = claim_of(writer, url, Owner(run.run_uid, run.started_at))
    with asked(writer):
        claim.check_retry()


def _inspect(writer: DatasetWriter, url: str) -> None:
    check_place(f"connection {writer.connection!r}", url)
    place = place_of(writer, url)
    with asked(writer):
        place.check()
        if not writer.owns:  # which part, only a run says
            FolderClaim(place, writer, _NEXT).check_begin()
