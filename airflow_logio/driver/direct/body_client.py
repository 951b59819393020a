"""Asks one driver for bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyarrow import flight

from airflow_logio.driver.direct.body_server import AUTHORIZATION, bearer
from airflow_logio.driver.direct.credentials import SERVER_NAME
from airflow_logio.store.port.unfenced_port import DirectAddress

PATIENCE_SECONDS = 3.0
"""For a question, connection included: what does not come is made again, which takes its time, too."""
BYTES_PER_SECOND = 10e6
"""For so many bytes it is a second more."""


class BodyClient:
    """Trusts the one certificate that the log has of the driver, and shows the one that the log has for those who ask."""

    def __init__(self, address: DirectAddress) -> None:
        self.address = address
        self._client = flight.FlightClient(
            address.location,
            tls_root_certs=address.certificate.encode(),
            cert_chain=address.client_certificate.encode(),
            private_key=address.client_key.encode(),
            override_hostname=SERVER_NAME,
            # A proxy is for what drivers read outside, and would only hear where they are.
            generic_options=[("grpc.enable_http_proxy", 0)],
        )
        self._headers = [(AUTHORIZATION.encode(), bearer(address.token).encode())]

    def ask(self, digests: Sequence[bytes], size: int) -> Iterator[tuple[bytes, bytes]]:
        """(digest, body) of those that are there; together they have about `size` bytes.

        Whether a body has that digest is for others to see. Raises what Arrow raises, OSError, and ValueError or TypeError
        for an answer that is none, also when some have come.
        """
        options = flight.FlightCallOptions(PATIENCE_SECONDS + size / BYTES_PER_SECOND, headers=self._headers)
        for chunk in self._client.do_get(flight.Ticket(b"".join(digests)), options):
            digests_, bodies = chunk.data.columns
            yield from zip(digests_.to_pylist(), bodies.to_pylist(), strict=True)

    def close(self) -> None:
        self._client.close()
