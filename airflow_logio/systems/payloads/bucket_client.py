"""A bucket as Python reaches it by fsspec: its client, and what its errors mean. Tasks use it, too."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.bucket_roots import BucketRoot, check_library
from airflow_logio.systems.payload_roots import redacted, shown


class BucketClient(ABC):
    """Raises `ConfigurationError` for a root that `BucketRoot` refuses, without credentials that a client must have, and if
    the library that reaches the store is not installed.
    """

    def __init__(self, root: str) -> None:
        self._at = BucketRoot.of(root)
        self._named = f"the payload store {shown(root)}"
        self._base = "/".join(filter(None, (self._bucket(), self._at.path)))
        check_library(root)
        try:
            self.client = self._opened()
        except ValueError as error:
            raise ConfigurationError(f"{self._named} cannot be opened: {redacted(str(error), root)}") from None

    def _bucket(self) -> str:
        """What keys begin with."""
        return self._at.authority

    def key(self, path: str) -> str:
        return f"{self._base}/{path}"

    # --- what stores do not have in common ----------------------------------------------------------------------------

    @abstractmethod
    def _opened(self, *, anew: bool = False) -> Any:
        """A client of fsspec; `anew`: no other one that knows credentials already. What it has listed is not kept: other
        processes write and remove. Raises ValueError, `ConfigurationError`."""

    @abstractmethod
    def _meaning(self, error: Exception, path: str, *, is_write: bool) -> LogioError | None:
        """What is wrong with bucket or credentials; None if it is nothing of that."""

    # --- errors -------------------------------------------------------------------------------------------------------

    @contextmanager
    def telling(self, path: str, *, is_write: bool = False) -> Iterator[None]:
        """What is wrong with bucket or credentials, with the next step; other errors as they are."""
        try:
            yield
        except LogioError:
            raise
        except Exception as error:
            told = self._meaning(error, path, is_write=is_write)
            if told is None:
                raise
            raise told from error

    def _expired(self, said: object, *, is_sure: bool = True) -> LogUnavailable:
        """Opens another client: one keeps what it has once read of a profile."""
        with contextlib.suppress(ConfigurationError, ValueError):
            self.client = self._opened(anew=True)
        perhaps = "Renew" if is_sure else "If they have expired, renew"
        return LogUnavailable(
            f"{self._named}: {said}. {perhaps} the credentials of drivers and executors: it is tried again"
        )

    def _no_bucket(self, said: object) -> ConfigurationError:
        return ConfigurationError(
            f"{self._named}: {said}. Make the bucket, or correct `payloads` of the log's connection"
        )

    def _denied(self, path: str, said: object) -> ConfigurationError:
        return ConfigurationError(
            f"{self._named}: {path}: {said}. Give drivers and executors credentials that may list the bucket, and read, "
            "write and delete objects there: in their environment, in a profile, or as the role of the machine"
        )


def abandoned(handle: Any) -> None:
    """Closed or collected, a handle of fsspec would complete the object with what it has got."""
    with contextlib.suppress(Exception):
        handle.discard()
    handle.closed = True
