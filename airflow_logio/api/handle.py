"""What the methods of a handle share: the operator's book, the open transaction, and when a method may be called."""

from __future__ import annotations

from airflow_logio.api.book import Book
from airflow_logio.api.infos import EventInfo
from airflow_logio.api.transaction import Transaction


class Handle:
    """Base of the groups of methods that make `Logio`."""

    _book: Book
    _initialized: bool
    _transaction: Transaction | None

    def _ready(self, what: str) -> Book:
        """The book, if the context is restored."""
        self._book.check_usable()
        if not self._initialized:
            raise self._book.refuse(f"{what} comes after initialize_context(), at the first start too")
        return self._book

    def _marks(self) -> dict[str, int]:
        return {port: self._book.context.mark(port) for port in self._book.spec.inputs}

    def _begin(self) -> Transaction:
        self._refuse_transaction("another transaction")
        self._transaction = Transaction(self._book)
        return self._transaction

    def _refuse_transaction(self, what: str) -> None:
        if self._transaction is not None and self._transaction.is_open:
            raise self._book.refuse(f"{what} while a transaction is open: commit() it first")

    def _refuse_unsent(self, what: str) -> None:
        if self._book.unsent:
            port = min(self._book.unsent)
            raise self._book.refuse(
                f"{what} while events of port {port!r} are logged and not sent: send({port!r}) first"
            )

    def _refuse_not_source(self, what: str) -> None:
        if not self._book.is_source():
            raise self._book.refuse(
                f"{what} is for sources; a read action of a generation is logged by Transaction.log_read_event()"
            )

    def _input_port(self, event_info: EventInfo) -> str:
        if event_info.port not in self._book.spec.inputs:
            raise self._book.refuse(f"{event_info} is not of an input port")
        return str(event_info.port)
