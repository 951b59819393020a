"""Writers of tables and folders whose runs may own what they write (design, "Days"): by its value, or as what the runs of
one partition have written, wherever its values lie (``on_new_run="supersede"``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, Self

from airflow_logio.dataflow.names import check_sql_name
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.audits import Audit
from airflow_logio.dataflow.writers.owned_days import AT_ONCE, AT_THE_END, OwnedDay
from airflow_logio.errors import PipelineDefinitionError

SUPERSEDE = "supersede"
RUN_COLUMN = "logio_run"
LONGEST_RUN_COLUMN = 27
"""Characters: the owner of a table has its name in a record of bounded length."""


class OwningWriter(ActionWriter):
    """Base of `TableWriter`, `DatasetWriter` and `DeltaWriter`."""

    on_new_run: str
    by: tuple[str, ...] = ()
    switch: str = AT_THE_END
    owned: OwnedDay | None = None
    """The day that the run owns, once it is known (`for_run`), where records are compared with it before they are logged."""
    _audits: tuple[Audit, ...] = ()
    _partition: str = ""

    @property
    def supersedes(self) -> bool:
        """Whether a run replaces what earlier runs of its partition, of the same pipeline, have written."""
        return self.on_new_run == SUPERSEDE

    @property
    def owns(self) -> bool:
        """Whether its runs own what they write: then each run of the pipeline has a partition."""
        return bool(self.by) or self.supersedes

    @property
    def fills_at_once(self) -> bool:
        """Whether the old day goes with the first write action of a run, and new rows come as they are made."""
        return self.switch == AT_ONCE

    @property
    def partition(self) -> str:
        """The name of the partition by which its runs own what they write; empty if none, or not known yet."""
        return self.by[0] if self.by else self._partition if self.supersedes else ""

    @property
    def audits(self) -> tuple[Audit, ...]:
        """What must be right before rows of the run take the place of others: no part of what a run is compared by, as one
        that is wrong is corrected, and the run asks again."""
        return self._audits

    @property
    def joins(self) -> bool:
        """Whether its runs write beside each other: what they write does not depend on which is first."""
        return self.on_new_run == "append"

    def takes_files(self) -> bool:
        """Whether it may get the records of an event bit by bit: unless its author has changed what is written, or sent."""
        return False

    def in_pipeline_by(self, partition: str) -> Self:
        """The writer in a pipeline whose partition has this name."""
        if not self.supersedes:
            return self
        own = copy(self)
        own._partition = partition
        return own

    def day_of(self, params: Mapping[str, Any]) -> OwnedDay:
        """The partition of a run with these parameters."""
        return OwnedDay.of_run(self.partition, params)


def check_supersede(where: str, on_new_run: str, by: tuple[str, ...]) -> None:
    """Refuse what says twice, differently, which rows a new run replaces. Raises PipelineDefinitionError."""
    if on_new_run == SUPERSEDE and by:
        raise PipelineDefinitionError(
            f"{where}: on_new_run='supersede' with by={by!r}. To replace what has the run's {by[0]}, say 'overwrite' with "
            "by. To replace what earlier runs of its partition have written, wherever its values lie, say 'supersede' "
            "without by"
        )


def check_run_column(where: str, given: str | None, others: Iterable[str], *, supersedes: bool) -> str | None:
    """The column of a table by which the rows of runs are told; None for a writer that has none. `others`
    are its other columns. Raises PipelineDefinitionError."""
    if not supersedes:
        if given is not None:
            raise PipelineDefinitionError(f"{where}: run_column is for on_new_run='supersede'; leave it out")
        return None
    name = check_sql_name("column name", RUN_COLUMN if given is None else given)
    if len(name.encode()) > LONGEST_RUN_COLUMN:
        raise PipelineDefinitionError(
            f"{where}: run_column {name!r} has {len(name.encode())} bytes, and may have {LONGEST_RUN_COLUMN}"
        )
    if name.casefold() in map(str.casefold, others):
        raise PipelineDefinitionError(
            f"{where}: run_column {name!r} is another one of its columns, too; it is added to these. Give run_column another "
            "name"
        )
    return name
