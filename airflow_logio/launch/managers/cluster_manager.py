"""The port to what starts drivers on a cluster: Kubernetes, YARN, a standalone master (design, "Drivers on a cluster").

The fence is the only proof of who may commit. A manager is asked for two things: room (a driver that lives on takes cores
that its successor needs) and speed (an end that is seen before the lease has passed).
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission

if TYPE_CHECKING:  # what only looks at drivers, such as the page, launches none
    from airflow_logio.launch.driver_config import Launch


class DriverSight(StrEnum):
    """What a manager says of one driver that was submitted to it."""

    QUEUED = "queued"
    """Accepted, and no container or node is given to it yet: it waits for room."""
    STARTING = "starting"
    """It has its room, and does not run yet: files are copied, an image is pulled."""
    STUCK = "stuck"
    """It waits for what does not come by itself, such as an image that cannot be pulled."""
    RUNNING = "running"
    EXITED = "exited"
    """An agent on its node has seen its end."""
    LOST = "lost"
    """The manager has written it off, with its node or because that is late: it may still run."""
    GONE = "gone"
    """The manager answers, and knows no such driver: it never did, or it has forgotten. This proves nothing."""
    UNKNOWN = "unknown"
    """The manager does not answer, is not the active one, or this process has no way to it. This proves nothing."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a manager says of a submission now."""

    state: DriverSight
    why: str = ""
    """For people: the queue that it waits in, how it has ended, or why nothing is known."""
    since: float | None = None
    """Since when it waits, in seconds since the epoch by the manager's clock; None: not said."""
    was_taken: bool = False
    """It has ended because the manager took its room (preemption, eviction of no fault of its own) or lost its node."""


class ClusterManager(ABC):
    """One manager at one address. Only `submit` may take long; all other requests end within `REQUEST_SECONDS`.

    For use by several threads.
    """

    name: ClassVar[str]
    """As `Submission.manager` has it."""

    @abstractmethod
    def check(self, settings: SparkSettings, conf: Mapping[str, str]) -> None:
        """Refuse what cannot work here before anything is claimed or started; `conf` is what the group's properties have
        become. Asks the manager nothing. Raises `ConfigurationError`."""

    def given_in_files(self, conf: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Variables in files of this machine which are submitted with a driver, so that the manager shows them: ``variable
        in FILE`` → name → value. Raises `ConfigurationError`."""
        return {}

    @abstractmethod
    def check_answers(self) -> None:
        """Ask the manager whether it is there and takes submissions, before anything is claimed. Raises
        `ManagerUnavailable`, or `ConfigurationError` if it answers that it never will."""

    @abstractmethod
    def prepare(self, claim: Claim, launch: Launch) -> Submission:
        """What a submission of this claim will be, without an id. Its name has a hash of the claim's nonce (`claim_name`), so
        that nothing else has it. Noted in the log before `submit` is called: others find what a launcher that died has left.
        Asks the manager nothing."""

    @abstractmethod
    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        """Submit a driver and return at *accepted*, with the id.

        One request, or one child process that ends within `SUBMIT_SECONDS`; never a second one for the same claim. Raises
        `ConfigurationError` if it was refused, so that certainly none was submitted (`NeverFits`: it would be each time);
        `ManagerUnavailable` if it was refused
        for now: nothing was submitted, and it may be later; and `SubmissionUnknown` if one may have been, or may still be.
        """

    @abstractmethod
    def find(self, submission: Submission) -> Sequence[Submission]:
        """Drivers that were submitted by this name, with their ids. None where the manager cannot list by name.

        Raises `ManagerUnavailable`.
        """

    @abstractmethod
    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        """What the manager says of each, in as few requests as it allows. Never raises: what it cannot say is `UNKNOWN`.

        Of a submission with an `attempt` it speaks of that attempt: where there is a later one it is `LOST`, unless its exit
        was seen. Of one without an id it speaks of what has its name.
        """

    @abstractmethod
    def end(self, submission: Submission) -> bool:
        """Ask for its end; whether the manager confirms that it has ended, or is certain never to start.

        It is asked again and again until it says yes. By the id; without one, by the name, which has the nonce's hash. What
        another cluster answers confirms nothing. Raises `ManagerUnavailable`.
        """

    @abstractmethod
    def sweep(self, log_uid: str, is_known: Callable[[str], bool]) -> int:
        """Remove what drivers have left with the manager (pods, services, folders) whose run `is_known` denies, by its uid;
        returns how many things. Only what was submitted by the log of this uid. Raises `ManagerUnavailable`."""

    @abstractmethod
    def output_command(self, submission: Submission) -> str:
        """The command that shows what the driver's JVM has printed."""

    def page(self, submission: Submission) -> str | None:
        """The address of the manager's own page about the driver, if it has one."""
        return None


REQUEST_SECONDS = 5.0
"""For one request to a manager, to its end."""
SUBMIT_SECONDS = 120.0
"""For one submission, to its end: afterwards nothing of it is on its way any more."""


def claim_name(claim: Claim, *, most: int = 63) -> str:
    """A name for what is submitted for a claim: ``logio-<run>-<group>-<incarnation>-<hash of the nonce>``.

    Lower-case letters, digits and hyphens, at most `most` of them, as a label of DNS wants it; a long or strange name of a
    group is cut and changed, and the hash keeps names apart.
    """
    end = f"-{claim.incarnation}-{hashlib.blake2b(claim.nonce.encode(), digest_size=6).hexdigest()}"
    group = re.sub("[^a-z0-9]+", "-", claim.group.lower()).strip("-")
    return f"logio-{claim.run_uid[:8]}-{group}"[: most - len(end)].rstrip("-") + end
