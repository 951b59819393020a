"""`Logio`: the LOG.io API (Section 6.2) for one hand-written operator."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.api.book import Book, Station
from airflow_logio.api.host import Host
from airflow_logio.api.inbox import Inbox
from airflow_logio.api.interface import InterfaceMethods
from airflow_logio.api.recovery_methods import RecoveryMethods
from airflow_logio.api.stream import StreamMethods
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.port import GroupSession


class Logio(InterfaceMethods, RecoveryMethods, StreamMethods):
    """A handle of the log, bound to one operator of one incarnation of a driver: the paper's procInfo is never an argument.

    All methods belong to the thread of `ManualOperator.run`. Each may raise `ApiMisuse`, which says what would be right,
    and changes nothing then; those that commit raise also what `Transaction.commit` does.
    """

    def __init__(self, station: Station, session: GroupSession, host: Host, recovered: Recovered) -> None:
        self._book = Book(station, session, host, recovered)
        self._inbox = Inbox(session, station.spec.name, self._marks())
        self._initialized = False
        self._transaction = None
        self._acknowledged = recovered.acknowledged
        self._reloaded = not recovered.acknowledged
        for write in map(host.loaded, recovered.writes):
            self._book.writes.logged(
                self._book.write_action(write.connection, write.number, write.header, self._records(write))
            )
        for port in station.spec.outputs:
            host.sent(port, self._book.events.last_logged(port))

    def _records(self, write: PendingWrite) -> pa.Table:
        if not write.body:
            return pa.table({})
        event = Event(Port(write.operator, write.connection), write.number, Kind.DATA, write.records, None, write.body)
        return self._book.host.decode(event)
