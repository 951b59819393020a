"""What an author has declared of a pipeline so far, each part checked by itself, and how ports are referred to in it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from airflow_logio.dataflow.names import check_name, did_you_mean, quoted
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline.days import Partitioning
from airflow_logio.dataflow.pipeline.days_of_tables import DaysOfTable
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.lineage import LineageScope, MadeFrom
from airflow_logio.dataflow.replication.partition import Partition
from airflow_logio.dataflow.sources.arrival import InputArrival
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.protocol.replicas import MAX_REPLICAS, replica_name
from airflow_logio.protocol.values import Port

MOST_JOBS_AT_ONCE = 64
"""Each needs a thread of the driver, and memory for a plan."""

ON_OVERRUN = ("recover", "park")
Prepare = Callable[[Mapping[str, str]], str | None]
"""Takes connection name → database URL; returns what to tell the person at the terminal, None for nothing."""

_NOT_SET = (
    "not set in the process that launches its drivers: set it there (for `logio` in the shell, for Airflow on the workers "
    "and wherever a supervisor runs)"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED_VARIABLES = {
    "AIRFLOW": "Airflow's own settings hold its secrets. Name a connection, or a variable of your own",
    "LOGIO_": "variables of that prefix are settings of this provider",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that share one Spark application and fail together, as `Pipeline.group` returns it.

    :param name: name of the group.
    :param operators: names of its operators, in topological order once the pipeline is frozen.
    :param spark: Spark properties of its drivers; an Airflow operator may override them.
    :param jobs_at_once: how many events are evaluated side by side in mode ``dataframe`` (ADR-92), 1 to 64; None: what
        the cluster has room for.
    :param standby: how many processes stand by to take the place of its driver: none, or one (ADR-108).

    Raises PipelineDefinitionError for an illegal name, an empty group, a setting that is no ``spark.`` property, or a
    number out of its range.
    """

    name: str
    operators: tuple[str, ...]
    spark: Mapping[str, str] = field(default_factory=dict)
    jobs_at_once: int | None = None
    standby: int = 0

    def __post_init__(self) -> None:
        check_name("group", self.name)
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "spark", dict(self.spark))
        if not self.operators:
            raise PipelineDefinitionError(f"group {self.name!r} has no operators")
        for key, value in self.spark.items():
            self._check_setting(key, value)
        jobs: object = self.jobs_at_once
        if jobs is not None and (
            isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST_JOBS_AT_ONCE
        ):
            raise PipelineDefinitionError(
                f"group {self.name!r}: jobs_at_once is {jobs!r}; give a number from 1 to {MOST_JOBS_AT_ONCE}"
            )
        standby: object = self.standby
        if isinstance(standby, bool) or standby not in (0, 1):
            raise PipelineDefinitionError(
                f"group {self.name!r}: standby is {standby!r}; give 1, or leave it out: the process that takes a driver's "
                "place starts the next one, so a second one would only wait"
            )

    def _check_setting(self, key: object, value: object) -> None:
        if not isinstance(key, str) or not key.startswith("spark."):
            hint = did_you_mean(
                f"spark.{key}", ["spark.driver.memory", "spark.executor.memory", "spark.executor.cores"]
            )
            raise PipelineDefinitionError(f"group {self.name!r}: {key!r} is no Spark property.{hint}")
        if not isinstance(value, str):
            raise PipelineDefinitionError(
                f"group {self.name!r}: Spark property {key!r} is {value!r}; write it as a string, as Spark reads it"
            )


@dataclass(frozen=True, slots=True)
class Replicated:
    """A group that several replicas share, as `Pipeline.replicate` returns it.

    :param group: name of the group.
    :param partition: how a Dispatcher splits its events between slots.
    :param least: the smallest number of replicas.
    :param most: the largest one.
    :param initial: how many there are when a run begins.
    :param ordered: what comes out has the order of what went in.

    Raises PipelineDefinitionError for numbers that do not fit together.
    """

    group: str
    partition: Partition
    least: int
    most: int
    initial: int
    ordered: bool = False

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"min": self.least, "max": self.most, "initial": self.initial}
        for what, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                self._refuse(f"{what} is {value!r}; give a number of replicas, from 0 on")
        if not 1 <= self.most <= MAX_REPLICAS:
            self._refuse(f"max is {self.most}; give 1 to {MAX_REPLICAS} replicas")
        if not self.least <= self.initial <= self.most:
            self._refuse(f"initial is {self.initial}, which is not between min {self.least} and max {self.most}")
        partition: object = self.partition
        if not isinstance(partition, Partition):
            self._refuse(f"partition is {partition!r}; write RoundRobin(), LeastLoaded() or ByKey('column')")
        self.partition.slots_for(self.most)

    @property
    def slots(self) -> int:
        """The number of parts into which its work is cut."""
        return self.partition.slots_for(self.most)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of all replicas that it may ever have."""
        return tuple(replica_name(self.group, number) for number in range(1, self.most + 1))

    def _refuse(self, sentence: str) -> None:
        raise PipelineDefinitionError(f"group {self.group!r} is replicated: {sentence}")


@dataclass(frozen=True, slots=True)
class CallLimit:
    """`seconds` per call of an operator's function, source or writer; then the driver ends, and its group is recovered, or
    parked. Raises PipelineDefinitionError."""

    seconds: float
    on_overrun: str = "recover"

    def __post_init__(self) -> None:
        given: object = self.seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise PipelineDefinitionError(f"max_seconds is {given!r}; give seconds, more than 0")
        if self.on_overrun not in ON_OVERRUN:
            raise PipelineDefinitionError(
                f"on_overrun {self.on_overrun!r} is neither 'recover' nor 'park'."
                f"{did_you_mean(str(self.on_overrun), ON_OVERRUN)}"
            )


@dataclass(frozen=True, slots=True)
class LocalDefaults:
    """How an example runs without options. Deployments ignore it, and it is not part of a pipeline's fingerprint."""

    params: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Run parameter → function that makes its value; called only if the parameter is not given."""
    connections: Mapping[str, Path] = field(default_factory=dict)
    """Connection → SQLite file, or a folder where files are written; relative to the terminal's folder."""
    prepare: Prepare | None = None
    """Called before a run is started that uses any of these defaults, e.g. to load tables that the pipeline reads."""

    def flaw(self, params: Iterable[str], connections: Iterable[str]) -> str | None:
        """Why a pipeline with these parameters and connections cannot have these defaults; None if it can."""
        for what, given, known in (
            ("parameter", self.params, tuple(params)),
            ("connection", self.connections, tuple(connections)),
        ):
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known)
                    return f"local_defaults names {what} {name!r}, which the pipeline does not have.{hint}"
        for name, make in self.params.items():
            made: object = make
            if not callable(made):
                return f"local_defaults has {made!r} for parameter {name!r}: give a function that returns it"
        for name, path in self.connections.items():
            if set("{}") & set(str(path)):
                return (
                    f"local_defaults has the path {str(path)!r} for connection {name!r}, which is the same for all runs; run "
                    "parameters are for the paths of sources and writers (docs/parameters.md)"
                )
        return None


@dataclass
class Definition:
    """The parts of a pipeline; `senders` is receiver port → sender port, so that one input port has one sender."""

    name: str
    params: dict[str, type]
    connections: tuple[str, ...]
    fuse: bool = True
    """Whether operators without a group share one where nothing tells them apart."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that its drivers get. Deployment, no part of the graph."""
    zone: str = ""
    """The zone of its Spark sessions, where a group does not say another one; empty: UTC."""
    operators: dict[str, Operator] = field(default_factory=dict)
    senders: dict[Port, Port] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    scopes: list[LineageScope] = field(default_factory=list)
    replicated: list[Replicated] = field(default_factory=list)
    replays: set[str] = field(default_factory=set)
    """Replay operators (Section 5): bodies of their events are not in the log."""
    limits: dict[str, CallLimit] = field(default_factory=dict)
    """Operator → limit of its calls. No part of the graph: another limit makes no other pipeline."""
    arrivals: dict[str, InputArrival] = field(default_factory=dict)
    """Source → how it gets its input. No part of the graph: what is waited for before a run is no part of the run."""
    days_read: dict[str, tuple[DaysOfTable, ...]] = field(default_factory=dict)
    """Source → the days of tables that it reads. No part of the graph: it changes nothing that is read."""
    local: LocalDefaults = field(default_factory=LocalDefaults)
    columns: dict[Port, MadeFrom] = field(default_factory=dict)
    """Output port → what its columns are made from. Said of the graph, no part of it."""
    drivers_at_once: int | None = None
    """How many drivers all its runs may have at once. Deployment, no part of the graph."""
    keep_seconds: float | None = None
    """How long its ended runs stay in the log. Deployment, no part of the graph."""
    partition: Partitioning | None = None
    """What one run is for. Its parameters are among `params`, so they stand wherever a parameter may."""

    def divide(self, partition: Partitioning) -> None:
        """Give each run a partition. Raises PipelineDefinitionError for a parameter that it gives and the author, too."""
        for name in partition.names:
            if name in self.params:
                self.refuse(
                    f"parameter {name!r} is one that {partition.written()} gives each run: leave it out of params"
                )
            self.params[name] = str
        self.partition = partition

    def given_params(self) -> dict[str, type]:
        """The parameters that whatever starts a run has to give."""
        own = () if self.partition is None else self.partition.names
        return {name: kind for name, kind in self.params.items() if name not in own}

    def refuse(self, sentence: str) -> NoReturn:
        """Raise PipelineDefinitionError with the name of the pipeline in front."""
        raise PipelineDefinitionError(f"pipeline {self.name!r}: {sentence}")

    def graph(self) -> Graph:
        """The graph as it is now."""
        return Graph(
            {name: tuple(operator.inputs) for name, operator in self.operators.items()},
            {name: tuple(operator.outputs) for name, operator in self.operators.items()},
            dict(self.senders),
        )

    def operator_named(self, name: str, user: str) -> Operator:
        """The operator of that name; `user` begins the sentence of the error, e.g. ``group 'x' contains``."""
        if name not in self.operators:
            self.refuse(f"{user} {name!r}, which is no operator.{did_you_mean(name, self.operators)}")
        return self.operators[name]

    def output(self, reference: str, user: str) -> Port:
        """The output port meant by ``operator.port``, or by ``operator`` if it has only one."""
        name, _, port = reference.partition(".")
        if name not in self.operators:
            self.refuse(f"{user} {reference!r}, but there is no operator {name!r}.{self._meant(reference, name)}")
        ports = self.operators[name].outputs
        if not ports:
            self.refuse(f"{user} {reference!r}, but {name!r} has no output port")
        if port in ports:
            return Port(name, port)
        if not port and len(ports) == 1:
            return Port(name, ports[0])
        if not port:
            meant = [f"{name}.{candidate}" for candidate in ports]
            self.refuse(
                f"{user} {reference!r}, which is ambiguous: {name!r} has several output ports. Write {_or(meant)}"
            )
        self.refuse_port(reference, user, ports)

    def input(self, reference: str) -> Port:
        """The input port meant by ``operator.port``, or by ``operator`` if it has only one."""
        name, _, port = reference.partition(".")
        ports = self.operator_named(name, f"connection to {reference!r}: there is").inputs
        if port in ports:
            return Port(name, port)
        if not port and len(ports) == 1:
            return Port(name, ports[0])
        if not port and ports:
            meant = [f"{name}.{candidate}" for candidate in ports]
            self.refuse(
                f"connection to {reference!r} is ambiguous: {name!r} has several input ports. Write {_or(meant)}"
            )
        self.refuse_port(reference, "connection to port", ports)

    def connect(self, sender: Port, receiver: Port) -> None:
        """Add a connection; raises PipelineDefinitionError if the input port has a sender already."""
        if receiver in self.senders:
            self.refuse(
                f"input port {str(receiver)!r} is connected to {str(self.senders[receiver])!r} and to "
                f"{str(sender)!r}: one input port has one sender. Give the operator one input port for each"
            )
        self.senders[receiver] = sender

    def refuse_port(self, reference: str, user: str, ports: Iterable[str]) -> NoReturn:
        """Raise PipelineDefinitionError for a port that is not among the operator's `ports`."""
        name, _, port = reference.partition(".")
        candidates = list(ports)
        if not candidates:
            self.refuse(f"{user} {reference!r}, but {name!r} has no such ports at all")
        only = "only " if len(candidates) == 1 else ""
        close = [f"{name}.{candidate}" for candidate in candidates]
        # With one such port there is nothing to guess.
        hint = f" Did you mean {close[0]!r}?" if len(close) == 1 else did_you_mean(f"{name}.{port}", close)
        self.refuse(f"{user} {reference!r}, but {name!r} has {only}{quoted(candidates)}.{hint}")

    def _meant(self, reference: str, name: str) -> str:
        ports = [f"{known}.{port}" for known, operator in self.operators.items() for port in operator.outputs]
        return did_you_mean(reference, ports) if "." in reference else did_you_mean(name, self.operators)


def _or(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)


def check_variables(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once. Raises PipelineDefinitionError for what is no name of a variable, and for those of Airflow."""
    if isinstance(names, str):
        raise PipelineDefinitionError(f"environment is the single string {names!r}: write [{names!r}]")
    given: tuple[object, ...] = tuple(names)
    for name in given:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise PipelineDefinitionError(
                "environment has an entry that is no name of a variable; give names, never values"
            )
        for prefix, reason in _REFUSED_VARIABLES.items():
            if name.upper().startswith(prefix):
                raise PipelineDefinitionError(f"environment names {name!r}: {reason}")
    return tuple(dict.fromkeys(map(str, given)))


def variable_values(
    pipeline: str, names: Iterable[str], given: Mapping[str, str], *, lack: str = _NOT_SET
) -> dict[str, str]:
    """The values of the variables. Raises ConfigurationError for one that is not set, with what it lacks; it names no
    value."""
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigurationError(f"pipeline {pipeline!r} names environment variable {missing[0]!r}, which is {lack}")
    return {name: given[name] for name in names}
