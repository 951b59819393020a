"""Asks one driver for bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyarrow import flight

from airflow_logio.runtime.driver.direct.body_server import AUTHORIZATION, bearer
from airflow_logio.runtime.driver.direct.credentials import SERVER_NAME
from airflow_logio.store.address_port import DirectAddress

PATIENCE_SECONDS = 5.0
"""For one question, connection included: what does not come is made again, which takes its time, too."""


class BodyClient:
    """Trusts the one certificate that the log has of the driver. `ask` raises what Arrow raises, and OSError."""

    def __init__(self, address: DirectAddress) -> None:
        self.address = address
        self._client = flight.FlightClient(
            address.location, tls_root_certs=address.certificate.encode(), override_hostname=SERVER_NAME
        )
        self._options = flight.FlightCallOptions(
            timeout=PATIENCE_SECONDS, headers=[(AUTHORIZATION.encode(), bearer(address.token).encode())]
        )

    def ask(self, digests: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Digest → body, of those that are there. Whether a body has that digest is for others to see."""
        found = {}
        for chunk in self._client.do_get(flight.Ticket(b"".join(digests)), self._options):
            for digest, body in zip(*chunk.data.columns, strict=True):
                found[digest.as_py()] = body.as_py()
        return found

    def close(self) -> None:
        self._client.close()
