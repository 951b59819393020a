"""Payloads in a container of Azure, as drivers reach them: by adlfs. Bodies and stored effects, and no datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.payloads.bucket_storage import BucketStorage

_BLOCK = 8 * 2**20
_PERHAPS_EXPIRED = "AuthenticationFailed"
"""What Azure says of a signature that is wrong, and of one whose time is over."""


class AzureStorage(BucketStorage):
    """As `BucketStorage`."""

    def _bucket(self) -> str:
        return self._at.authority.partition("@")[0]

    def _opened(self, *, anew: bool = False) -> Any:
        """Raises ValueError for credentials that adlfs cannot read, `ConfigurationError` for another account's."""
        from adlfs import AzureBlobFileSystem

        host = self._at.authority.partition("@")[2]
        account = host.partition(".")[0]
        client = AzureBlobFileSystem(
            account_name=account,
            account_host=host.replace(".dfs.", ".blob.", 1),
            anon=False,
            use_listings_cache=False,
            **({"skip_instance_cache": True} if anew else {}),
        )
        if (named := client.service_client.account_name) != account:
            raise ConfigurationError(
                f"{self._named}: AZURE_STORAGE_CONNECTION_STRING is of the account {named}. Unset it, or correct `payloads` "
                "of the log's connection"
            )
        return client

    def _listed(self, beginning: str, *, is_deep: bool) -> Iterator[str]:
        """adlfs says of a container that is not there that it is empty."""
        from fsspec.asyn import sync

        prefix = self._prefix(beginning) or None

        async def found() -> list[str]:
            async with self.client.service_client.get_container_client(self._bucket()) as container:
                if is_deep:
                    return [str(blob.name) async for blob in container.list_blobs(name_starts_with=prefix)]
                listed = container.walk_blobs(name_starts_with=prefix, delimiter="/")
                return [str(one.name) async for one in listed if one.name.endswith("/")]

        yield from self._below_root(sync(self.client.loop, found))

    def _copied(self, source: str, target: str) -> None:
        """A copy of Azure's own may still be under way when it answers, so bytes come through here."""
        with self.open(source) as reader, self.create(target) as writer:
            while block := reader.read(_BLOCK):
                writer.write(block)

    def _meaning(self, error: Exception, path: str, *, is_write: bool) -> LogioError | None:
        from azure.core.exceptions import AzureError

        said = f"{path}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if isinstance(error, FileNotFoundError):
            return self._no_bucket(said) if is_write else None
        cause = error if isinstance(error, AzureError) else error.__cause__  # adlfs says RuntimeError of parts
        if not isinstance(cause, AzureError):
            return None
        status, code = getattr(cause, "status_code", None), getattr(cause, "error_code", None) or ""
        if status == 401 or code == _PERHAPS_EXPIRED:
            return self._expired(said, is_sure=status == 401)
        if status == 403:
            return self._denied(path, f"{said} ({code})")
        if status == 404:
            return self._no_bucket(said)
        return LogUnavailable(f"{self._named}: {said}")
