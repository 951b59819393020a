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

    Use this in a DAG that is scheduled on it, not a URI of your own: Airflow compares names and URIs as text, and drops what
    follows a ``#``. Raises ValueError if there is no connection.

    :param connection_id: the connection.
    :param place: the table or folder; empty for the folder that the connection names.
    :param extra: extra of the asset.
    """
    from airflow.sdk import Asset

    return Asset(_uri(connection_id, place), extra=extra)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Accepts the URIs that `create_asset` makes, and no other of scheme ``logio``.

    Airflow has dropped what follows a ``#``, and a ``/`` at the end. It takes two spellings of a place for two assets, so a
    DAG that is scheduled on another one would never run. Raises ValueError, which says how the place is spelled.
    """
    connection_id, place = unquote(uri.netloc), unquote(uri.path).strip("/")
    if not connection_id or uri.query:
        raise ValueError(
            f"{uri.geturl()!r} names nothing that a pipeline writes; give {SCHEME}://<connection id>/<table or folder>, "
            'with %3F for "?" and %23 for "#"'
        )
    if uri.geturl().rstrip("/") != (spelled := _uri(connection_id, place)).rstrip("/"):
        raise ValueError(
            f"{uri.geturl()!r} is taken for another asset than {spelled!r}: write that, or use create_asset"
        )
    return uri


def _uri(connection_id: str, place: str) -> str:
    return f"{SCHEME}://{quote(connection_id, safe='')}/{quote(place)}"
