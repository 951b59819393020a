"""The payload store as the page reads it: what is wrong with it is no trouble of the log, and has sentences of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from airflow_logio.errors import ExternalUnavailable, LogInconsistent, LogioError, LogUnavailable, OperatorFailed
from airflow_logio.lineage.lineage_records import Elsewhere


class RecordsOutOfReach(LogioError):
    """Records are in the payload store, and this server cannot read them there. The message names no path and no secret."""

    def __init__(self, message: str, reason: str = "", status: int = 503) -> None:
        """`reason`: what the payload store has said, for the log of the server and for its owner."""
        super().__init__(message)
        self.reason = reason
        self.status = status


class RecordsDamaged(RecordsOutOfReach, LogInconsistent):
    """They are missing there, or not what the log says."""


class PagePayloads:
    """Opened when records are asked for that are not in the log. `opening` gives None where no payload store is known."""

    def __init__(self, opening: Callable[[], Elsewhere | None]) -> None:
        self._opening = opening

    def table(self, where: str, ref: str) -> pa.Table:
        """As `Elsewhere.table`. Raises `RecordsOutOfReach`."""
        with _told(where):
            return self._opened(where).table(where, ref)

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """As `Elsewhere.pieces`. Raises `RecordsOutOfReach`."""
        with _told(where):
            yield from self._opened(where).pieces(where, ref, columns)

    def _opened(self, where: str) -> Elsewhere:
        found = self._opening()
        if found is None:
            raise RecordsOutOfReach(
                f"the records of {where} are in the payload store, which this server does not know: name it as `payloads` in "
                "the extra of the connection with which the page opens the log"
            )
        return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except RecordsOutOfReach:
        raise
    except LogInconsistent as error:
        raise RecordsDamaged(
            f"the records of {where} are missing in the payload store that this server knows, or damaged: look whether its "
            "connection names the folder or bucket that the drivers write to, in `payloads`",
            str(error),
            500,
        ) from error
    except OperatorFailed as error:  # as `Dataset.table` says it
        raise RecordsOutOfReach(
            f"the records of {where} are a dataset that is too large to be taken as one table", str(error), 404
        ) from error
    except (LogUnavailable, ExternalUnavailable) as error:
        raise RecordsOutOfReach(
            f"the records of {where} are in the payload store, which does not answer this server: try again in a moment, and "
            "look whether this server may reach that folder or bucket",
            str(error),
        ) from error
    except (LogioError, OSError, ImportError, ValueError) as error:
        # Also what the lookup of a connection raises, and a file system without its library.
        raise RecordsOutOfReach(
            f"the records of {where} are in the payload store, which this server cannot open: look at `payloads` in the "
            "extra of the connection with which the page opens the log, and whether this server may read that folder or "
            "bucket",
            str(error),
        ) from error
