"""The payload store: what was written is read, or nothing is; what a fenced incarnation left is swept, and nothing else."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from airflow_logio.dataflow import SourceBatch
from airflow_logio.driver.committer import serialize
from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable, OperatorFailed
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import WAIT
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.calls import CallWatch
from airflow_logio.systems.payload_roots import payload_root, redacted, shown
from airflow_logio.systems.payloads import EpochPayloads, Payloads, storage, sweep_group, sweep_run
from airflow_logio.systems.payloads.bodies import Bodies, size_of
from airflow_logio.systems.payloads.stored_effects import store_effect, stored_batches
from tests.support.logs import IN, OUT, Driver, fetched, replace_driver, sent, start_driver
from tests.support.own_calls import as_seen
from tests.support.waiting import eventually

BODY = os.urandom(3000)


@pytest.fixture(params=["folder", "fsspec"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder, and a file system of fsspec that has nothing to do with folders."""
    if request.param == "folder":
        yield str(tmp_path / "made" / "when needed")
    else:
        name = f"/{uuid.uuid4().hex}"
        yield f"memory:/{name}"
        if fsspec.filesystem("memory").exists(name):
            fsspec.filesystem("memory").rm(name, recursive=True)


@pytest.fixture
def payloads(root: str) -> Payloads:
    return Payloads(root)


@pytest.fixture
def epoch(payloads: Payloads) -> EpochPayloads:
    return payloads.epoch("run", "g", 1, 0)


def replaced(root: str, path: str, data: bytes | None) -> None:
    """A file is damaged, or removed (None)."""
    files, base = fsspec.core.url_to_fs(root)
    if data is None:
        files.rm_file(f"{base}/{path}")
    else:
        files.pipe_file(f"{base}/{path}", data)


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(payloads: Payloads, epoch: EpochPayloads) -> None:
    reference = epoch.store("bodies/sender.out/7", BODY)
    assert reference.path == "run/g/1/0/bodies/sender.out/7.1"
    assert Reference.parse("x", str(reference)) == reference
    assert payloads.load("event 7", str(reference)) == BODY


def test_two_attempts_have_two_files(payloads: Payloads, epoch: EpochPayloads) -> None:
    first, second = epoch.store("effects/s/1", b"old"), epoch.store("effects/s/1", b"new")
    assert first.path != second.path
    assert (payloads.load("x", str(first)), payloads.load("x", str(second))) == (b"old", b"new")


def test_nothing_is_overwritten(payloads: Payloads, epoch: EpochPayloads) -> None:
    reference = epoch.store("bodies/a.out/1", BODY)
    twin = payloads.epoch("run", "g", 1, 0)
    with pytest.raises(LogInconsistent, match="there already"):
        twin.store("bodies/a.out/1", b"other")
    assert payloads.load("x", str(reference)) == BODY


def test_an_error_on_the_way_leaves_no_file_and_comes_out_as_it_is(payloads: Payloads, epoch: EpochPayloads) -> None:
    with pytest.raises(PermissionError, match="the reader's own"), epoch.created("effects/s/1") as file:
        file.write(b"half")
        raise PermissionError("the reader's own")
    assert payloads.find("run") == []


@pytest.mark.parametrize("damaged", [BODY[:-1], BODY + b"!", b"", bytes([BODY[0] ^ 1]) + BODY[1:]])
def test_a_damaged_file_is_said_with_event_and_path(
    root: str, payloads: Payloads, epoch: EpochPayloads, damaged: bytes
) -> None:
    reference = epoch.store("bodies/sender.out/7", BODY)
    replaced(root, reference.path, damaged)
    with pytest.raises(LogInconsistent, match=rf"event 7 of sender\.out is damaged: {reference.path}"):
        payloads.load("event 7 of sender.out", str(reference))
    with pytest.raises(LogInconsistent, match="damaged"), payloads.opened("event 7", str(reference)):
        raise AssertionError("it must not be handed out")


def test_no_flipped_bit_of_a_file_or_of_its_reference_is_another_body(
    root: str, payloads: Payloads, epoch: EpochPayloads
) -> None:
    """Beside it is a file whose path has one other bit: a reference that leads there has another checksum."""
    body = BODY[:40]
    reference, _ = epoch.store("bodies/sender.out/6", body), epoch.store("bodies/sender.out/7", body[::-1])
    text = str(reference).encode()
    for bit in range(8 * len(text)):
        with pytest.raises(LogInconsistent, match="event 7"):
            payloads.load("event 7", _flipped(text, bit).decode(errors="replace"))
    for bit in range(8 * len(body)):
        replaced(root, reference.path, _flipped(body, bit))
        with pytest.raises(LogInconsistent, match="event 7 is damaged"):
            payloads.load("event 7", str(reference))


def _flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_missing_file_is_said_with_event_and_path(root: str, payloads: Payloads, epoch: EpochPayloads) -> None:
    reference = epoch.store("bodies/sender.out/7", BODY)
    replaced(root, reference.path, None)
    with pytest.raises(LogInconsistent, match=rf"event 7 is missing: {reference.path}"):
        payloads.load("event 7", str(reference))


@pytest.mark.parametrize("text", ["", "x", "/etc/passwd#00000000-1", "a/../../b#00000000-1", "a#zzzzzzzz-1"])
def test_what_is_no_reference_is_refused(payloads: Payloads, text: str) -> None:
    with pytest.raises(LogInconsistent, match="event 7"):
        payloads.load("event 7", text)


def test_removing_again_is_no_error(payloads: Payloads, epoch: EpochPayloads) -> None:
    refs = [str(epoch.store("bodies/a.out/1", BODY)), str(epoch.store("bodies/a.out/2", BODY))]
    payloads.remove(refs[:1])
    payloads.remove(refs)
    payloads.remove(refs)
    assert payloads.find("run") == []


def test_files_and_folders_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    Payloads(str(tmp_path / "p")).epoch("run", "g", 1, 0).store("bodies/a.out/1", BODY)
    for path in (tmp_path / "p").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_file_and_folders_are_synced_before_the_reference_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(storage, "os", as_seen(os, fsync=fsync))
    reference = Payloads(str(tmp_path / "p")).epoch("run", "g", 1, 0).store("bodies/a.out/1", BODY)
    file = tmp_path / "p" / reference.path
    made = [str(folder) for folder in file.parents if folder.is_relative_to(tmp_path)]
    assert set(synced) == {str(file), *made}, "the entry of every new folder, too"
    assert synced.index(str(file)) < len(synced) - 1 and synced[-1] == str(file.parent)


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "mount"
    root.write_text("a file where the folder should be")
    epoch = Payloads(str(root)).epoch("run", "g", 1, 0)
    threading.Timer(0.3, root.unlink).start()
    assert epoch.store("bodies/a.out/1", BODY).size == len(BODY)


def test_nobody_waits_for_a_store_after_the_epoch(tmp_path: Path) -> None:
    root = tmp_path / "mount"
    root.write_text("")
    epoch = Payloads(str(root)).epoch("run", "g", 1, 0)
    epoch.stop()
    with pytest.raises(LogUnavailable, match="payload store"):
        epoch.store("bodies/a.out/1", BODY)


# --- where it is ------------------------------------------------------------------------------------------------------


def test_an_sqlite_log_has_its_payloads_beside_it() -> None:
    assert payload_root("sqlite:////data/logio.db", None) == "/data/logio.db.payloads"
    assert payload_root("sqlite:////data/logio.db", "s3://bucket/x") == "s3://bucket/x"
    assert payload_root("sqlite://", None) is None
    assert payload_root("postgresql://u:p@host/log", None) is None
    assert payload_root("postgresql://u:p@host/log", "/mnt/payloads") == "/mnt/payloads"
    with pytest.raises(ConfigurationError, match="absolute"):
        payload_root("postgresql://host/log", "payloads")


def test_a_container_of_azure_is_no_user() -> None:
    root = "abfss://lake@account.dfs.core.windows.net/payloads"
    assert shown(root) == root
    assert redacted("the lake", root) == "the lake"


def test_no_message_holds_a_credential() -> None:
    root = "sftp://anna:geh%40eim@host/folder?token=abc"
    assert shown(root) == "sftp://host/folder"
    assert "geh" not in redacted("cannot open sftp://anna:geh%40eim@host with geh@eim and token=abc", root)
    with pytest.raises(ConfigurationError) as caught:
        Payloads("nosuchthing://anna:geheim@host/x")
    assert "geheim" not in str(caught.value) and "nosuchthing" in str(caught.value)


# --- the sweep --------------------------------------------------------------------------------------------------------


def of(payloads: Payloads, driver: Driver) -> EpochPayloads:
    return payloads.epoch(driver.run.uid, "g", driver.ref.incarnation, 0)


def with_ref(event_id: int, ref: Reference) -> fx.LogEvent:
    event = Event(OUT, event_id, Kind.DATA, 3, None, BODY, ref=str(ref))
    return fx.LogEvent(event, (fx.Delivery(IN),))


def test_only_what_a_fenced_incarnation_did_not_commit_is_swept(log_store: LogStore, payloads: Payloads) -> None:
    old = start_driver(log_store)
    named, lost = of(payloads, old).store("bodies/sender.out/1", BODY), of(payloads, old).store("effects/s/1", b"half")
    old.session.commit([with_ref(1, named)])
    assert sweep_group(payloads, log_store, old.run, "g", below=old.ref.incarnation) == 0, "nothing of a live one"
    new = replace_driver(old)
    of(payloads, new).store("effects/s/1", b"under way")
    assert sweep_group(payloads, log_store, new.run, "g", below=new.ref.incarnation) == 1
    assert sorted(payloads.find(new.run.uid)) == [named.path, f"{new.run.uid}/g/2/0/effects/s/1.1"]
    assert lost.path not in payloads.find(new.run.uid)


def test_a_run_that_goes_on_keeps_what_its_live_drivers_write(log_store: LogStore, payloads: Payloads) -> None:
    driver = start_driver(log_store)
    of(payloads, driver).store("effects/s/1", b"under way")
    assert sweep_run(payloads, log_store, driver.run) == 0
    driver.session.commit([fx.FinishGroup()])
    assert sweep_run(payloads, log_store, driver.run) == 1


def test_a_zombie_that_writes_after_the_sweep_is_swept_by_the_next_one(log_store: LogStore, payloads: Payloads) -> None:
    zombie = start_driver(log_store)
    writing = of(payloads, zombie)
    new = replace_driver(zombie)
    # A folder that the sweep has taken from under the file is said, so that no event refers to it.
    with contextlib.suppress(LogUnavailable), writing.created("effects/s/1") as file:
        file.write(b"begun before")
        sweep_group(payloads, log_store, new.run, "g", below=2)
    late = writing.store("bodies/sender.out/1", BODY)
    with pytest.raises(Exception, match="replaced"):
        zombie.session.commit([with_ref(1, late)])
    newer = replace_driver(new)
    assert sweep_group(payloads, log_store, newer.run, "g", below=3) >= 1
    assert payloads.find(newer.run.uid) == []


def test_other_runs_and_groups_are_left_alone(log_store: LogStore, payloads: Payloads) -> None:
    driver = start_driver(log_store)
    for run, group in ((driver.run.uid, "g_2"), ("another", "g")):
        payloads.epoch(run, group, 1, 0).store("effects/s/1", b"x")
    assert sweep_group(payloads, log_store, driver.run, "g", below=9) == 0
    assert len(payloads.find(driver.run.uid)) == 1 and len(payloads.find("another")) == 1


def test_a_reference_goes_through_the_log(log_store: LogStore, payloads: Payloads) -> None:
    driver = start_driver(log_store)
    ref = of(payloads, driver).store("bodies/sender.out/1", BODY)
    driver.session.commit([with_ref(1, ref), sent(2)])
    first, second = driver.session.fetch(IN, 0, max_events=9, max_bytes=1 << 20)
    assert (first.event.ref, first.event.body, second.event.ref) == (str(ref), b"", None)
    assert size_of(first.event) == len(BODY)
    assert fetched(driver.session) == [1, 2]
    # The size counts wherever the body is: else one fetch would bring in more than there is room for.
    assert len(driver.session.fetch(IN, 0, max_events=9, max_bytes=len(BODY))) == 1
    assert log_store.references(driver.run.run_id, driver.run.uid) == {str(ref)}
    assert not log_store.references(driver.run.run_id, driver.run.uid + "x")
    with log_store.lineage(driver.run) as lineage:
        assert lineage.size("sender", "out", [1, 2]) == size_of(first.event) + size_of(second.event), (
            "wherever they are"
        )


# --- bodies -----------------------------------------------------------------------------------------------------------

TABLE = pa.table({"x": pa.array(range(1000), pa.int64())})


def test_large_bodies_are_outside_the_log_and_small_ones_inside(epoch: EpochPayloads) -> None:
    bodies = Bodies(epoch, inline_bytes=500)
    small = fx.LogEvent(Event(OUT, 1, Kind.DATA, 1, TABLE.slice(0, 2)), ())
    large = fx.LogEvent(Event(OUT, 2, Kind.DATA, 1000, TABLE), ())
    write = fx.LogWrite("w", "db", 1, {}, 1000, TABLE)
    read = fx.LogRead("r", "db", 1, {}, ("1",), 1000, TABLE)
    done: Any = serialize([small, large, write, read], bodies)
    assert done[0].event.ref is None
    assert [Reference.parse("x", ref).path.split("/")[4] for ref in (done[1].event.ref, done[2].ref, done[3].ref)] == [
        "bodies",
        "writes",
        "reads",
    ]
    assert done[-1] == fx.CountEvents(OUT, "out", 0, 0, len(encode(TABLE.slice(0, 2))) + len(encode(TABLE)))
    again = bodies.unpacked(Event(OUT, 2, Kind.DATA, 1000, None, b"", ref=done[1].event.ref))
    assert again.payload.equals(TABLE)
    loaded = bodies.loaded(PendingWrite("w", "db", 1, {}, 1000, b"", done[2].ref))
    assert loaded.body == encode(TABLE)


def test_without_a_store_every_body_is_in_the_log() -> None:
    effects: Any = serialize([fx.LogEvent(Event(OUT, 2, Kind.DATA, 1000, TABLE), ())], Bodies(None, inline_bytes=1))
    assert effects[0].event.ref is None
    with pytest.raises(ConfigurationError, match=r"event 2 of sender\.out is in a payload store"):
        Bodies(None).unpacked(Event(OUT, 2, Kind.DATA, 1000, None, b"", ref="run/g/1/0/bodies/x/2.1#00000000-5"))


# --- stored effects ---------------------------------------------------------------------------------------------------


def batches(*sizes: int) -> Iterator[SourceBatch]:
    offset = 0
    for size in sizes:
        offset += size
        yield SourceBatch(TABLE.slice(offset - size, size), offset, {"size": size})


def test_an_effect_is_read_batch_by_batch_from_any_of_their_ends(epoch: EpochPayloads) -> None:
    reference, records = store_effect(epoch, "effects/s/1", batches(10, 0, 20, 5))
    assert records == 35
    for offset, expected in ((0, [10, 20, 5]), (10, [20, 5]), (30, [5]), (35, [])):
        found = list(stored_batches(epoch, "the effect", str(reference), offset))
        assert [batch.table.num_rows for batch in found] == expected
        assert [batch.about["size"] for batch in found] == expected
        whole = pa.concat_tables([batch.table for batch in found]) if found else TABLE.slice(0, 0)
        assert whole.equals(TABLE.slice(offset, 35 - offset))
    with pytest.raises(LogInconsistent, match="no batch of the effect ends at record 11"):
        list(stored_batches(epoch, "the effect", str(reference), 11))


def test_an_empty_effect_has_no_batches(epoch: EpochPayloads) -> None:
    reference, records = store_effect(epoch, "effects/s/1", batches(0))
    assert records == 0
    assert list(stored_batches(epoch, "the effect", str(reference), 0)) == []


def test_batches_with_dictionaries_of_their_own_are_kept(epoch: EpochPayloads) -> None:
    tables = [pa.table({"x": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "a", "d"])]
    made = [SourceBatch(table, 0) for table in tables]
    reference, _ = store_effect(epoch, "effects/s/1", made)
    found = [batch.table for batch in stored_batches(epoch, "the effect", str(reference), 0)]
    assert [table.to_pydict() for table in found] == [table.to_pydict() for table in tables]


def test_batches_of_two_schemas_are_refused_with_both(payloads: Payloads, epoch: EpochPayloads) -> None:
    other = [*batches(10), SourceBatch(pa.table({"y": ["text"]}), 11)]
    with pytest.raises(OperatorFailed, match="columns y string, those before it had x int64"):
        store_effect(epoch, "effects/s/1", other)
    assert payloads.find("run") == []


def test_the_log_forgets_a_payload_and_then_it_is_removed(log_store: LogStore, payloads: Payloads) -> None:
    """As a group does it: the references that garbage collection returns are removed after its commit."""
    driver = start_driver(log_store)
    run: Run = driver.run
    ref = of(payloads, driver).store("bodies/sender.out/1", BODY)
    driver.session.commit([with_ref(1, ref)])
    driver.session.commit([fx.Acknowledge(OUT, IN, 1, ())])
    collected = driver.session.commit([fx.Collect(("receiver",), 100)])
    refs = [one for result in collected for one in result.refs]
    assert refs == [str(ref)]
    payloads.remove(refs)
    assert payloads.find(run.uid) == []


def test_whoever_waits_for_the_payload_store_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not that the log is unavailable; where a run is looked at, too, as long as it waits."""
    calls = CallWatch()
    epoch = Payloads(str(tmp_path)).epoch("run", "g", 1, 0, calls)
    reference = epoch.store("effects/s/1", BODY)
    (tmp_path / reference.path).unlink()
    (tmp_path / reference.path).mkdir()  # which cannot be read as a file
    seen = list[str]()

    def look() -> None:
        eventually(lambda: calls.longest()[0] != "", what="it says that it waits")
        seen.append(calls.longest()[0])
        epoch.stop()

    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(LogUnavailable, match=f"^payload store {tmp_path}: IsADirectoryError"):
        epoch.load("event 1", str(reference))
    looking.join()
    assert seen[0].startswith(f"{WAIT}loading the payload of event 1, unavailable since ")
    assert f"payload store {tmp_path}: IsADirectoryError" in seen[0] and calls.longest() == ("", 0.0)
    assert f"loading the payload of event 1: waiting for the payload store {tmp_path} (attempt 1)" in caplog.text
    assert "log database" not in caplog.text


def test_an_effect_that_an_earlier_version_has_stored_becomes_events_whatever_its_values_are(
    epoch: EpochPayloads,
) -> None:
    """It cannot be read again; `logio mend` mends the event. What is stored now was looked at before."""
    bad = pa.table({"s": pa.array([b"\xe9"]).view(pa.string())})
    with epoch.created("effects/s/1") as file, pa.ipc.new_stream(file, bad.schema) as writer:
        writer.write_batch(bad.to_batches()[0], custom_metadata={b"about": b"{}"})
    (batch,) = stored_batches(epoch, "it", str(file.reference), 0)
    assert batch.table.equals(bad) and batch.next_offset == 1
    with pytest.raises(OperatorFailed, match="the source returned values that are none"):
        store_effect(epoch, "effects/s/2", iter([SourceBatch(bad, 1)]))
