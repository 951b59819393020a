"""Uploads, copies and reads of a payload store in a bucket of which requests fail: what is said is so, and waited for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_logio.errors import LogUnavailable
from airflow_logio.spark import store_probe
from airflow_logio.systems.payloads import Payloads, task_files
from airflow_logio.systems.payloads.file_roots import data_files
from tests.support.datasets import dataset_of
from tests.support.faulty_payloads import FaultyPayloads, faulty_payloads
from tests.support.faulty_store import BROKEN, EXPIRED, Answer, Cut, Effect, LostAnswer, Torn, faulty_store, named
from tests.support.object_store import ObjectStore
from tests.support.waiting import eventually

ORDERS = pa.table({"id": list(range(1000))})
BROKEN_INSIDE = Answer(200, "InternalError")
"""S3 begins its answer before it has copied, or put parts together: what went wrong then is in the body."""
FILES = 4


@pytest.fixture
def store(objects: ObjectStore) -> Iterator[FaultyPayloads]:
    with faulty_payloads(objects) as made:
        yield made


def test_an_error_in_the_body_of_an_answer_is_none_the_less_one(store: FaultyPayloads) -> None:
    """Of copies, and of uploads that are completed: each is asked for again."""
    epoch, made = store.epoch(), dataset_of(store.epoch(), *[ORDERS] * FILES)
    copied = store.way.fail(named("CopyObject"), BROKEN_INSIDE, times=2)
    own = epoch.own("write action 1", "own/1", made)
    completed = store.way.fail(named("CompleteMultipartUpload"), BROKEN_INSIDE, times=1)
    (line,) = large(store, "large.1")
    assert (copied.met, completed.met) == (2, 1)
    own.check()
    assert own.table.num_rows == FILES * 1000
    assert made.files.footer(line["path"], line["size"]) == line["footer"]


def large(store: FaultyPayloads, folder: str) -> list[dict[str, Any]]:
    """What a task says that has written noise, in parts."""
    rng = np.random.default_rng(1)
    noise = pa.table({"noise": pa.array([rng.bytes(2**16) for _ in range(2**8 + 2**6)], pa.binary())})
    batches = noise.to_batches(2**5)
    return [
        line
        for found in task_files.written(store.root, f"run/g/1/0/{folder}", (), batches)
        for line in found.to_pylist()
    ]


@pytest.mark.parametrize("effect", [LostAnswer(), Cut(), BROKEN], ids=["lost", "cut", "broken"])
@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_an_upload_in_parts_is_whole_or_said_to_have_failed(
    store: FaultyPayloads, operation: str, effect: Effect
) -> None:
    """Whatever is asked again, and whichever answer was lost: a line of a file is one of a file that is there."""
    for times in (1, 10**6):
        fault = store.way.fail(named(operation), effect, times)
        lines = large(store, f"{operation}.{times}")
        store.way.heal()
        assert fault.met >= 1
        for line in lines:
            if line["error"]:
                assert line["error"] == "LogUnavailable", line
                continue
            found = data_files(store.root)
            assert found.footer(line["path"], line["size"]) == line["footer"]
    assert lines[0]["error"] == "LogUnavailable"


def test_credentials_that_are_renewed_in_a_profile_are_found(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By processes that have used those which have expired: drivers, and the Python of tasks."""
    for name in (name for name in os.environ if name.startswith("AWS_")):
        monkeypatch.delenv(name)
    profile = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _write_profile(profile, "OLD")
    with faulty_store(objects.port) as way:
        root = f"s3://{objects.new_bucket()}/t?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1"
        epoch = Payloads(root).epoch("run", "g", 1, 0)
        made = dataset_of(epoch, ORDERS)
        old = way.fail(lambda request: "Credential=OLD/" in request.headers.get("authorization", ""), EXPIRED)
        (line,) = _lines(root)
        assert line["error"] == "LogUnavailable" and "Renew the credentials" in line["said"]
        with pytest.raises(LogUnavailable, match="Renew the credentials"):
            Payloads(root).find("run")
        only_reads = Payloads(root)  # it begins with a HEAD, whose answer has no body
        with pytest.raises(LogUnavailable, match="If they have expired, renew the credentials"):
            only_reads.load("a row", str(made.reference))
        _write_profile(profile, "NEW")
        with suppress(LogUnavailable):
            only_reads.load("a row", str(made.reference))
        assert only_reads.load("a row", str(made.reference)) == made.manifest.encoded()
        eventually(lambda: _lines(root)[0]["error"] == "", what="a client of the new ones")
        assert epoch.load("event 1", str(epoch.store("bodies/1", b"body"))) == b"body"
        assert made.table.num_rows == 1000
        assert old.met > 0


def _write_profile(profile: Path, name: str) -> None:
    profile.write_text(
        f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\naws_session_token = {name}\n"
    )


def _lines(root: str) -> list[dict[str, Any]]:
    """What a task says that has written."""
    written = task_files.written(root, "run/g/1/0/renewed", (), ORDERS.to_batches())
    return [line for found in written for line in found.to_pylist()]


def test_a_store_that_does_not_answer_is_not_taken_for_another_one(store: FaultyPayloads) -> None:
    """Neither by a task that is to read what the driver has written, nor by one that reads a footer or records."""
    said, made = str(store.epoch().store("probe.1/driver", b"can you read this?")), dataset_of(store.epoch(), ORDERS)
    batches = pa.table({"id": [1]}).to_batches()
    for effect in (Cut(), Torn()):
        store.way.fail(named("GetObject"), effect)
        (found,) = store_probe.probed(store.root, "run/g/1/0/probe.1", said.partition("#")[0], batches)
        [line] = found.to_pylist()
        assert line["error"] == "LogUnavailable", (effect, line)
        for ask in (made.check, lambda: list(made.spans("id"))):
            with pytest.raises(LogUnavailable):
                ask()
        store.way.heal()
    (found,) = store_probe.probed(store.root, "run/g/1/0/probe.1", "run/g/1/0/none", batches)
    assert found.to_pylist()[0]["found"] is False
    assert made.table.num_rows == 1000
