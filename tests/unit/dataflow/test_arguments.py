"""An argument that nothing takes is refused with the one that was probably meant, by every public class and function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import airflow_logio
from airflow_logio import (
    EveryEvents,
    ParquetSource,
    Pipeline,
    QuerySource,
    TableWriter,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch.bundle import load, parse_ref

_VALUES = {"External", "InputEvent", "InputSet", "Marker", "Node", "PublishedFile", "SourceBatch", "WriteAction"}
"""What is made for each event."""
_RECORDS = _VALUES | {"Synchronized"}
"""The arguments of `Synchronized` are ports."""


def taking_arguments() -> list[str]:
    found = []
    for name in airflow_logio.dataflow.__all__:
        public = getattr(airflow_logio, name)
        if isinstance(public, type):
            takes = "__init__" in vars(public) and not getattr(public, "_is_protocol", False)
        else:
            takes = inspect.isfunction(public)
        if takes and name not in _RECORDS and not inspect.isabstract(public):
            found.append(name)
    return found


@pytest.mark.parametrize("name", taking_arguments())
def test_every_public_name_says_which_argument_it_does_not_have(name: str) -> None:
    public = getattr(airflow_logio, name)
    known = [one for one, about in inspect.signature(public).parameters.items() if about.kind is about.KEYWORD_ONLY]
    with pytest.raises(PipelineDefinitionError, match=rf"line \d+: {name}: there is no argument 'zzz_no_argument'"):
        public(zzz_no_argument=1)
    for one in known[:1]:
        with pytest.raises(PipelineDefinitionError, match=rf"there is no argument '{one}x'.*Did you mean '{one}'\?"):
            public(**{f"{one}x": 1})


def test_so_do_the_methods_of_a_pipeline() -> None:
    pipeline = Pipeline("p")
    with pytest.raises(PipelineDefinitionError, match=r"Pipeline\.group: .* 'sparkk'.*Did you mean 'spark'\?"):
        pipeline.group("g", sparkk={})  # type: ignore[call-arg]
    with pytest.raises(PipelineDefinitionError, match=r"Pipeline\.lineage: missing a required argument: 'target'"):
        pipeline.lineage("a")  # type: ignore[call-arg]


def test_what_other_systems_have_is_told_instead() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"on_conflict.*mode='upsert'"):
        TableWriter("shop", "sales", on_conflict="update")  # type: ignore[call-arg]
    with pytest.raises(PipelineDefinitionError, match=r"slide.*Windows do not overlap"):
        Tumbling("1h", on="at", slide="5m")  # type: ignore[call-arg]


def test_a_type_error_from_further_inside_stays_what_it_is() -> None:
    class Own(TableWriter):
        def opening(self) -> Any:
            return len(7)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        Own("shop", "sales").opening()
    with pytest.raises(TypeError, match="expected string"):
        QuerySource("shop", 7)  # type: ignore[arg-type]


def test_a_mistake_in_a_module_is_shown_without_the_frames_of_its_import(tmp_path: Path) -> None:
    (tmp_path / "wrong_argument.py").write_text("from airflow_logio import EveryEvents\np = EveryEvents(2, slide=1)\n")
    with pytest.raises(PipelineDefinitionError, match=r"wrong_argument\.py, line 2: EveryEvents: there is no argument"):
        load(parse_ref(f"{tmp_path / 'wrong_argument.py'}:p"))
    (tmp_path / "wrong_call.py").write_text("len(1)\n")
    with pytest.raises(ConfigurationError, match="has no len") as refused:
        load(parse_ref(f"{tmp_path / 'wrong_call.py'}:p"))
    assert "importlib" not in str(refused.value) and 'wrong_call.py", line 1' in str(refused.value)


@stateless
def each(rows: Any, port: str) -> Any:
    return rows


@generate
def together(rows: Any) -> Any:
    return rows


@pytest.mark.parametrize(
    ("add", "sentence"),
    [
        (lambda p: p.operator("x", each, "a", "b"), r"@stateless\(inputs=\('a', 'b'\)\).*`port` says which one"),
        (lambda p: p.operator("x", together, "a", "b", window=EveryEvents(2)), r"@generate\(inputs=\('a', 'b'\)\)"),
        (lambda p: p.writer("x", TableWriter("shop", "t"), "a", "b"), r"A writer has one: .* def both\(rows\)"),
    ],
)
def test_two_upstreams_for_one_port_say_how_they_come_together(add: Callable[[Pipeline], Any], sentence: str) -> None:
    pipeline = Pipeline("p", connections=["shop"])
    for name in ("a", "b"):
        pipeline.source(name, ParquetSource(name))
    with pytest.raises(PipelineDefinitionError, match=f"gets 2 upstreams for 1 input port.*{sentence}"):
        add(pipeline)


def test_a_function_of_an_input_set_is_told_that_port_is_for_events() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"takes 'port'.*`port` is for @stateless functions"):
        generate(lambda rows, port: rows)
    with pytest.raises(
        PipelineDefinitionError, match=r"takes 'rows'.*gets a table of each port, by its name: def f\(a, b\)"
    ):
        generate(inputs=("a", "b"))(lambda rows, port: rows)
