"""The allowed order of API calls: one transaction at a time, then `send`; recovery comes before anything new."""

from __future__ import annotations

from airflow_logio.contrib.paper_api.book import Book
from airflow_logio.contrib.paper_api.infos import EventInfo
from airflow_logio.contrib.paper_api.transaction import Transaction


class CallOrder:
    """A method that refuses a call raises `ApiMisuse`, which names the correct call. It changes nothing."""

    def __init__(self, book: Book, *, is_reloaded: bool) -> None:
        self._book = book
        self._transaction: Transaction | None = None
        self.is_initialized = False
        """`initialize_context` was called."""
        self.is_reloaded = is_reloaded
        """`fetch_ack_events` had nothing to return, or has returned everything."""

    def ready(self, what: str) -> Book:
        """The book, if the context is restored."""
        self._book.check_usable()
        if not self.is_initialized:
            raise self._book.refuse(f"{what} comes after initialize_context(), at the first start too")
        return self._book

    def begin(self) -> Transaction:
        """A transaction, if no other is open."""
        self.refuse_transaction("another transaction")
        self._transaction = Transaction(self._book)
        return self._transaction

    def refuse_transaction(self, what: str) -> None:
        """Refuse `what` while a transaction is open."""
        if self._transaction is not None and self._transaction.is_open:
            raise self._book.refuse(f"{what} while a transaction is open: commit() it first")

    def refuse_unsent(self, what: str) -> None:
        """Refuse `what` while logged events wait for `send`."""
        if self._book.unsent:
            port = min(self._book.unsent)
            raise self._book.refuse(
                f"{what} while events of port {port!r} are logged and not sent: send({port!r}) first"
            )

    def refuse_not_source(self, what: str) -> None:
        """Refuse `what` to an operator with input ports."""
        if not self._book.is_source():
            raise self._book.refuse(
                f"{what} is for sources; a read action of a generation is logged by Transaction.log_read_event()"
            )

    def input_port(self, event_info: EventInfo) -> str:
        """The port of an input event."""
        if event_info.port not in self._book.spec.inputs:
            raise self._book.refuse(f"{event_info} is not of an input port")
        return str(event_info.port)

    def check_receivable(self, port: str | None) -> None:
        """Whether `receive` may come now, of this port or of any. Raises `ApiMisuse`."""
        book = self._book
        self.refuse_transaction("receive()")
        self.refuse_unsent("receive()")
        if book.is_source() or (port is not None and port not in book.spec.inputs):
            raise book.refuse(f"it has no input port {port!r} (it has: {', '.join(book.spec.inputs) or 'none'})")
        if not self.is_reloaded:
            raise book.refuse(
                "receive() comes after fetch_ack_events(): there are acknowledged events to recover first"
            )
        if book.unassigned:
            name, event_id = min(book.unassigned)
            raise book.refuse(
                f"event {event_id} of port {name!r} was received and not assigned: assign_in_sets() comes before the next "
                "receive(), with () if no Input Set uses it"
            )

    def check_finishable(self, *, state_given: bool) -> None:
        """Check that the stream may end now. Raises `ApiMisuse` that names the remaining work."""
        book = self._book
        self.refuse_transaction("end_of_stream()")
        self.refuse_unsent("end_of_stream()")
        left = ""
        if not book.context.ended.issuperset(book.spec.inputs):
            left = "its input ports have not ended"
        elif book.unassigned:
            left = f"event {min(book.unassigned)[1]} is not assigned"
        elif book.counted and not state_given:
            left = "its state has changed since the last commit (end_of_stream(state=...) stores it)"
        elif not self.is_reloaded:
            left = "acknowledged events are not recovered (fetch_ack_events)"
        elif names := book.input_sets.with_events():
            left = f"Input Set {names[0]!r} is not done, and nothing would ever generate it"
        elif writes := book.writes.undone():
            left = f"write action {writes[0].number} on connection {writes[0].connection!r} is not done"
        elif reads := book.reads.pending():
            left = f"read action {reads[0].action_id} is {reads[0].progress}"
        if left:
            raise book.refuse(f"the stream cannot end: {left}")
