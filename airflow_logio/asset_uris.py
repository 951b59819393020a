"""URIs of scheme ``logio``: Airflow's names for what pipelines write (ADR-99).

Airflow loads this module wherever a DAG names an asset, so it imports nothing that is heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "logio"


def create_asset(*, connection_id: str, place: str, extra: dict[str, Any] | None = None) -> Asset:
    """The asset of a table or folder behind an Airflow connection: ``logio://<connection id>/<table or folder>``.

    :param connection_id: the Airflow connection that the pipeline writes to.
    :param place: the table, or the folder below the connection's.
    :param extra: what Airflow keeps with the asset.

    Raises ValueError if a part is empty.
    """
    from airflow.sdk import Asset

    return Asset(f"{SCHEME}://{quote(connection_id, safe='')}/{quote(place)}", extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """The one spelling of a URI of scheme ``logio``, however its author has escaped it.

    Airflow compares URIs as text, so a DAG that is scheduled on another spelling would never run. Raises ValueError for one
    that names no connection, no table and no folder, or has a query: no task of this package ever makes an event for it.
    """
    connection_id, place = unquote(uri.netloc), unquote(uri.path).strip("/")
    if not connection_id or not place or uri.query:
        raise ValueError(
            f"{uri.geturl()!r} names nothing that a pipeline writes; give {SCHEME}://<connection id>/<table or folder>, "
            'with %3F for "?" and %23 for "#"'
        )
    return uri._replace(netloc=quote(connection_id, safe=""), path=f"/{quote(place)}")
