"""Bodies and stored effects in a container of Azure, by drivers: Azurite, and a way with faults."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from tests.support.azure_store import (
    ACCOUNT,
    BUSY,
    DENIED,
    EXPIRED,
    AzureStore,
    azure_store,
    reached,
    why_no_azure_store,
)
from tests.support.faulty_store import Cut, Effect, FaultyStore, LostAnswer, Request, faulty_store

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""By adlfs, of blocks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStore]:
    if why := why_no_azure_store():
        pytest.skip(why)
    with azure_store(tmp_path_factory.mktemp("azure")) as store:
        yield store


@dataclass
class Container:
    server: AzureStore
    way: FaultyStore
    name: str

    @property
    def root(self) -> str:
        return f"abfss://{self.name}@{ACCOUNT}.dfs.core.windows.net/lake/é x"

    @property
    def payloads(self) -> Payloads:
        return Payloads(self.root)

    @property
    def epoch(self) -> EpochPayloads:
        return self.payloads.epoch("run", "g", 1, 0)

    def names(self) -> list[str]:
        return self.server.names(self.name)


@pytest.fixture
def container(server: AzureStore) -> Iterator[Container]:
    with faulty_store(server.port) as way, reached(server.through(way.port)):
        from adlfs import AzureBlobFileSystem

        AzureBlobFileSystem.clear_instance_cache()  # it knows the way of the last test
        yield Container(server, way, server.new_container())
        AzureBlobFileSystem.clear_instance_cache()
        gc.collect()


def test_bodies_are_read_as_they_were_written_and_removed_without_a_trace(container: Container) -> None:
    payloads, epoch = container.payloads, container.epoch
    rng = np.random.default_rng(1)
    bodies = [b"", b"x", rng.bytes(5_000), rng.bytes(60 * 2**20)]
    refs = [str(epoch.store(f"bodies/a.out/{number}", body)) for number, body in enumerate(bodies)]
    assert [payloads.load("event", ref) for ref in refs] == bodies
    with payloads.opened("event", refs[3]) as file:
        assert file.read(3) == bodies[3][:3]
    assert sorted(payloads.find("run")) == sorted(ref.partition("#")[0] for ref in refs)
    container.server.put(container.name, "lake/é x/run2/x")
    assert sorted(payloads.runs()) == ["run", "run2"]
    payloads.remove(refs)
    payloads.remove(refs)
    payloads.discard(payloads.find("run2"), "run2")
    assert payloads.find("run") == [] and payloads.runs() == [] and container.names() == []
    with pytest.raises(LogInconsistent, match="is missing"):
        payloads.load("event", refs[0])


def test_what_is_broken_off_is_no_blob(container: Container) -> None:
    """A small one, which would be put when it is closed, and one of which blocks were sent."""
    for size in (100, 60 * 2**20):
        with pytest.raises(ValueError, match="of the reader"), container.epoch.created("effects/s/1") as file:
            file.write(bytes(size))
            raise ValueError("of the reader")
    gc.collect()
    assert any("blockid" in request.parameters for request in container.way.requests)
    assert container.names() == []


def puts(request: Request) -> bool:
    return request.method == "PUT"


@pytest.mark.parametrize("effect", [BUSY, LostAnswer(), Cut()], ids=["busy", "lost", "cut"])
def test_a_busy_store_and_lost_answers_leave_a_body_as_it_was_written(container: Container, effect: Effect) -> None:
    body = np.random.default_rng(2).bytes(60 * 2**20)
    for data in (b"body",) if effect is BUSY else (b"body", body):
        for wanted in (puts, lambda request: request.method == "GET"):
            fault = container.way.fail(wanted, effect, times=1)
            assert container.payloads.load("event", str(container.epoch.store("bodies/1", data))) == data
            assert fault.met == 1
            container.way.heal()


@pytest.mark.parametrize(
    ("effect", "kind", "says"),
    [(EXPIRED, LogUnavailable, "renew the credentials"), (DENIED, ConfigurationError, "credentials that may list")],
    ids=["expired", "denied"],
)
def test_credentials_are_said(container: Container, effect: Effect, kind: type[Exception], says: str) -> None:
    epoch = container.epoch
    ref = str(epoch.store("bodies/1", b"x"))
    container.way.fail(lambda request: True, effect)
    epoch.stop()
    asks: list[Callable[[], object]] = [
        lambda: epoch.store("bodies/2", b"body"),
        lambda: container.payloads.find("run"),
        lambda: container.payloads.discard([ref.partition("#")[0]], "run"),
        lambda: container.payloads.load("event 1", ref),
    ]
    for ask in asks:
        with pytest.raises(kind, match=says):
            ask()


def test_a_container_that_is_not_there_is_said_and_not_waited_for(container: Container) -> None:
    nowhere = Container(container.server, container.way, "none")
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        nowhere.epoch.store("bodies/a", b"x")
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        nowhere.payloads.find("run")


def test_the_variable_of_another_account_is_not_taken(container: Container) -> None:
    with pytest.raises(ConfigurationError, match=f"is of the account {ACCOUNT}"):
        Payloads(container.root.replace(ACCOUNT, "other"))


def test_datasets_are_refused(container: Container) -> None:
    with pytest.raises(ConfigurationError, match="no datasets"):
        container.payloads.data_root()
