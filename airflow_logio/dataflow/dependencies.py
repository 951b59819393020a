"""How output records of an operator depend on its input records: attribute dependencies (Section 7.3).

An attribute dependency A ↔ B says: the output records with x in column B are unaffected by all input records but those with x
in column A. With it, lineage leads from an output record to input records, and not only from event to events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NoReturn

from airflow_logio.dataflow.names import check_column, did_you_mean, quoted
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.record_rules import Dependence, Uses


class _WindowStart(Enum):
    """The start of the window of time that an input record is in."""

    WINDOW_START = "window_start"

    def __repr__(self) -> str:
        return "window_start"


window_start: Final = _WindowStart.WINDOW_START
"""In ``depends={"hour": window_start}``: the column holds the start of the window of time that the Input Set is."""

InputColumns = str | Iterable[str] | _WindowStart
"""``"store_id"``, ``"clicks.store_id"``, one of each input port, or `window_start`."""


@dataclass(frozen=True, slots=True)
class Depends:
    """Dependencies, with what more is known of the records: see `from_every` and `from_one`."""

    columns: Mapping[str, InputColumns] | None
    """Output column → what has the same value; None: each column of the output, by the one of the same name."""
    uses: Uses


Dependencies = Mapping[str, object] | Depends
"""What an author writes as ``depends``: output column → `InputColumns`, which says no more than that the values are the same;
or what `from_every` and `from_one` give; or output port → one of these."""


def from_every(columns: Mapping[str, InputColumns]) -> Depends:
    """Dependencies of an operator that makes an output record of *every* input record with the same values: a grouping.

    :param columns: output column → the input column that it equals; `window_start` for the start of the window.

    ``depends=from_every({"store_id": "store_id"})``: what lineage finds is exactly what the record was made from.
    """
    return Depends(columns, Uses.EVERY)


def from_one(columns: Mapping[str, InputColumns] | None = None) -> Depends:
    """Dependencies of an operator that makes each output record of *one* input record, by its values alone, and of each
    input record at most one: a filter, a renaming, an added column.

    :param columns: output column → the input column that it equals, ``{"shop": "store_id"}``. None (the default): it
        hands columns on under their names.
    """
    return Depends(columns, Uses.ONE)


UNCHANGED: Final = Dependence(Uses.SAME)
"""The dependence of an operator that sends its events on as they are."""


def by_port(
    given: Dependencies | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    where: str,
    *,
    has_windows: bool,
) -> dict[str, Dependence]:
    """What an author has given as ``depends``, checked, for each output port that it is about.

    `where` begins the sentence of an error: ``function 'f'``. `has_windows`: `window_start` may be named. Raises
    PipelineDefinitionError.
    """
    checking = _Checking(where, inputs, has_windows)
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not any(isinstance(one, Mapping | Depends) for one in given.values()):
        return dict.fromkeys(outputs, checking.dependence(given))
    given = {port: one for port, one in given.items() if one is not None}
    unknown = [port for port in given if port not in outputs]
    if unknown:
        checking.refuse(
            f"depends names output port {unknown[0]!r}, and the operator has {quoted(outputs)}."
            f"{did_you_mean(unknown[0], outputs)}"
        )
    return {port: checking.dependence(one) for port, one in given.items()}


@dataclass(frozen=True, slots=True)
class _Checking:
    where: str
    inputs: Sequence[str]
    has_windows: bool

    def refuse(self, sentence: str) -> NoReturn:
        raise PipelineDefinitionError(f"{self.where}: {sentence}")

    def dependence(self, given: object) -> Dependence:
        uses = given.uses if isinstance(given, Depends) else Uses.SOME
        columns = given.columns if isinstance(given, Depends) else given
        if not self.inputs:
            self.refuse("it has depends=..., and no input port that its records could depend on")
        if columns is None and uses in (Uses.ONE, Uses.SAME):
            return Dependence(uses)
        if not isinstance(columns, Mapping) or not columns:
            self.refuse(f'depends is {columns!r}; give output column → input column, e.g. {{"store_id": "store_id"}}')
        starts: list[str] = []
        by_input: dict[str, dict[str, str]] = {}
        for name, source in columns.items():
            check_column(name)
            if source is window_start:
                if not self.has_windows:
                    self.refuse(f"depends[{name!r}] is window_start, and its Input Sets are no windows of time")
                starts.append(name)
            else:
                for port, column in self._columns(name, source).items():
                    by_input.setdefault(port, {})[name] = column
        return Dependence(uses, by_input, tuple(starts))

    def _columns(self, name: str, given: object) -> dict[str, str]:
        """Input port → column."""
        if not isinstance(given, str | Iterable):
            self.refuse(f"depends[{name!r}] is {given!r}; give the name of an input column, or window_start")
        found: dict[str, str] = {}
        for one in [given] if isinstance(given, str) else given:
            port, column = self._place(name, str(one))
            if port in found:
                self.refuse(f"depends[{name!r}] names two columns of input port {port!r}: name the one that it equals")
            found[port] = column
        if not found:
            self.refuse(f"depends[{name!r}] is {given!r}; give the name of an input column, or window_start")
        return found

    def _place(self, name: str, text: str) -> tuple[str, str]:
        port, dot, column = text.rpartition(".")
        if not dot:
            port = self.inputs[0]
            if len(self.inputs) > 1:
                self.refuse(f"depends[{name!r}] names column {text!r} of several input ports: write '{port}.{text}'")
        if port not in self.inputs:
            self.refuse(
                f"depends[{name!r}] names {text!r}, and there is no input port {port!r}."
                f"{did_you_mean(port, self.inputs)}"
            )
        return port, check_column(column)
