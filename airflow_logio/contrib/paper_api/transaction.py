"""The transaction interface (Section 6.2): what one fenced commit adds to the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from airflow_logio.contrib.paper_api.accounts import pack
from airflow_logio.contrib.paper_api.book import Book, Staged
from airflow_logio.contrib.paper_api.infos import ActionInfo, EventInfo, ReadProgress, StateInfo
from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import check_values
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.values import Event, Kind, Port


class Transaction:
    """Made by `Logio.begin_transaction`. Before `commit`, nothing of it is in the log; afterwards, all of it is.

    A commit also carries every assignment, trigger and state event that is pending in the handle. Used as a context
    manager it commits at the end of the block; if the block raises, the transaction is dropped and the log unchanged.
    Its methods raise `ApiMisuse`. A call that stops half-way ends the transaction.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._staged = Staged()
        self.is_open = True

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._drop()
        elif self.is_open:
            self.commit()

    # --- the paper's table --------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit (Table 8): one transaction behind the fence.

        Raises `Fenced` (this driver was replaced), `EpochVoid` (its memory is void), `LogInconsistent` (the log does not
        hold the rows that the step expects), `LogUnavailable`. Do not catch them: the handle cannot be used afterwards.
        """
        self._use("commit()")
        self._book.commit(self._staged)
        self.is_open = False

    def log_source_event(self, event_info: EventInfo, event_data: pa.Table) -> None:
        """LogSourceEvent (Table 8): an undone output event of a source (Algorithm 1 Step 2.c (1))."""
        book = self._use("log_source_event()")
        if not book.is_source():
            raise book.refuse("it has input ports, so its events come from Input Sets: log_output_events()")
        book.reads.check_emitting()
        read = book.reads.last()
        if read is not None and read.info.connection == READ_CONNECTION and event_info.port in book.spec.lineage_out:
            about = {READ_ACTION_ID: read.info.action_id, **event_info.about}
            event_info = replace(event_info, about=about)
        self._stage_output(event_info, event_data, None)

    def log_output_events(
        self,
        event_info: Sequence[EventInfo],
        event_data: Sequence[pa.Table | None],
        inset_id: str,
        in_events: Sequence[EventInfo],
    ) -> None:
        """LogOutputEvents (Table 8): an Output Set, its write actions included; its Input Set is done (Alg. 3 Step 4).

        `event_data` holds the records of each event, None for a write action that has none. `in_events` are the events
        that the generation used: exactly those of the Input Set (hole H2; the listing passes the id alone). For a
        port in OUT, lineage is recorded if the Input Set holds an event of a port in IN (Section 3.1).
        """
        book = self._use("log_output_events()")
        if book.is_source():
            raise book.refuse("it has no input ports, so it has no Input Sets: log_source_event()")
        if inset_id in self._staged.closed:
            raise book.refuse(f"Input Set {inset_id!r} is done in this transaction already")
        book.input_sets.check_members(inset_id, in_events)
        try:
            for info, data in zip(event_info, event_data, strict=True):
                self._stage(info, data, inset_id)
        except BaseException:
            self._drop()  # half an Output Set must not be committed
            raise
        self._staged.closed.append(inset_id)

    def done_event(self, event_info: EventInfo | ActionInfo | WriteAction) -> None:
        """DoneEvent (Table 8): a write action has succeeded (Algorithm 5 Step 3), or the last event of a read action is
        logged (Algorithm 1 Step 2.c (3); Step 3 if it is replayable).

        Events of input ports are done by `log_output_events`, or by `Logio.assign_in_sets` if no Input Set uses them.
        """
        book = self._use("done_event()")
        match event_info:
            case ActionInfo():
                self._read_done(event_info)
            case WriteAction(connection=connection, number=number):
                self._write_done(connection, number)
            case EventInfo(connection=str(connection)):
                self._write_done(connection, event_info.event_id)
            case _:
                raise book.refuse(
                    f"{event_info} is no write action and no read action; events of input ports are done with their Input "
                    "Set (log_output_events), or when assign_in_sets() names none"
                )

    def store_state(self, state_info: StateInfo, state: Mapping[str, Any]) -> None:
        """StoreState (Table 8): an upsert of the global state in STATE (Algorithm 3 Step 4 (3)), serialized now.

        The paper's text names this method DoneEvent by mistake. The LOG.io context is stored with it, and by every commit.
        """
        book = self._use("store_state()")
        book.check_state_id(state_info)
        self._staged.state, self._staged.state_id = pack(book.spec.name, state), state_info.state_id

    # --- beyond the paper's table -------------------------------------------------------------------------------------

    def log_read_event(self, action_info: ActionInfo, effect: pa.Table, inset_id: str) -> None:
        """A side-effect read action of a generation, and its effect (Algorithm 3 Step 4 (5.a)), before
        `log_output_events` of its Input Set. Nothing is logged where no lineage is captured (Algorithm 4 Step 1)."""
        book = self._use("log_read_event()")
        book.input_sets.find(inset_id)
        check_values(effect, f"the effect of {action_info} has")
        book.use_action_id(action_info)
        if inset_id in self._staged.closed:
            raise book.refuse(f"Input Set {inset_id!r} is done: its read actions are logged before its Output Set")
        if book.spec.lineage_out:
            self._staged.enriched.add(inset_id)
            self._staged.effects.append(
                fx.LogRead(
                    book.spec.name,
                    action_info.connection,
                    action_info.action_id,
                    action_info.description,
                    (inset_id,),
                    effect.num_rows,
                    effect,
                )
            )

    # --- what the methods of the handle commit ------------------------------------------------------------------------

    def start_read(self, action: ActionInfo) -> None:
        """Algorithm 1 Step 1."""
        book = self._use("initialize_read_action()")
        record = book.reads.started(action)
        book.use_action_id(action)
        self._staged.reads.append(record)
        kept = bool(book.spec.lineage_out) and action.connection == READ_CONNECTION  # lineage leads to no others
        self._staged.effects.append(
            fx.StartReadAction(book.spec.name, action.connection, action.action_id, action.description, kept=kept)
        )

    def complete_read(self, action: ActionInfo, ref: str, records: int) -> None:
        """Algorithm 1 Step 2.b; an empty effect is used up at once (hole H5)."""
        book = self._use("complete_read_action()")
        if action.replayable:
            raise book.refuse(f"{action} is replayable: it is complete with its last event, by done_event()")
        progress = ReadProgress.COMPLETE if records else ReadProgress.DONE
        self._staged.reads.append(book.reads.moved(action, progress, ref))
        key = (book.spec.name, action.connection, action.action_id)
        self._staged.effects.append(fx.CompleteReadAction(*key, ref, records))
        if not records:
            self._staged.effects.append(fx.ReadDone(*key))

    def drop_read(self, action: ActionInfo) -> None:
        """Algorithm 1 Step 2.d."""
        book = self._use("drop_read_action()")
        self._staged.reads.append(book.reads.moved(action, ReadProgress.ENDED))
        self._staged.effects.append(fx.DropRead(book.spec.name, action.connection, action.action_id))

    def end_ports(self) -> None:
        """Design D9: the end of the stream, on every output port."""
        book = self._use("end_of_stream()")
        for port in book.spec.outputs:
            event_id = book.events.allocate(port)
            book.events.stage(port, event_id)
            self._staged.outputs.append((Event(Port(book.spec.name, port), event_id, Kind.END), None))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _use(self, what: str) -> Book:
        self._book.check_usable()
        if not self.is_open:
            raise self._book.refuse(f"{what} of a transaction that is over; begin another one")
        return self._book

    def _drop(self) -> None:
        self.is_open = False
        self._book.events.discard()
        self._book.numbers.discard()

    def _stage(self, info: EventInfo, data: pa.Table | None, inset_id: str) -> None:
        if info.connection is not None:
            self._stage_write(info, data)
        elif data is None:
            raise self._book.refuse(f"{info} has no records: give a table, perhaps an empty one")
        else:
            self._stage_output(info, data, inset_id)

    def _stage_output(self, info: EventInfo, data: pa.Table, inset_id: str | None) -> None:
        book = self._book
        check_values(data, f"event {info.event_id} of port {info.port!r} has")
        sender = book.output_port(info.port)
        book.events.stage(sender.name, info.event_id)
        event = Event(sender, info.event_id, Kind.DATA, data.num_rows, data, None, dict(info.about))
        self._staged.outputs.append((event, inset_id))

    def _stage_write(self, info: EventInfo, data: pa.Table | None) -> None:
        book, connection = self._book, str(info.connection)
        book.check_writable(connection)
        records = pa.table({}) if data is None else data
        check_values(records, f"write action {info.event_id} of connection {connection!r} has")
        book.numbers.stage(connection, info.event_id)
        self._staged.writes.append(book.write_action(connection, info.event_id, info.about, records))
        self._staged.effects.append(
            fx.LogWrite(book.spec.name, connection, info.event_id, dict(info.about), records.num_rows, data)
        )

    def _write_done(self, connection: str, number: int) -> None:
        book = self._book
        already = sum(action.connection == connection for action in self._staged.writes_done)
        action = book.writes.check_due(connection, number, already)
        self._staged.writes_done.append(action)
        self._staged.effects += [
            fx.WritesDone(book.spec.name, connection, number, number),
            fx.CountEvents(Port(book.spec.name, connection), "write", 1, action.records.num_rows),
        ]

    def _read_done(self, action: ActionInfo) -> None:
        book = self._book
        record = book.reads.find(action)
        if any((one.action_id, one.connection) == (action.action_id, action.connection) for one in self._staged.reads):
            raise book.refuse(f"{action} is done in this transaction already")
        key = (book.spec.name, action.connection, action.action_id)
        if record.replayable:
            self._staged.reads.append(book.reads.moved(action, ReadProgress.ENDED))
            self._staged.effects.append(fx.CompleteReadAction(*key))
        elif record.progress is ReadProgress.INCOMPLETE:
            raise book.refuse(f"{action} cannot be done: its effect is not stored, complete_read_action() comes first")
        else:
            self._staged.reads.append(book.reads.moved(action, ReadProgress.DONE))
            self._staged.effects.append(fx.ReadDone(*key))
