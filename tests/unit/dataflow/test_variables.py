"""Environment variables that a pipeline names: which names it may, and what is said of one that is not set."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.dataflow import Pipeline
from airflow_logio.dataflow.pipeline.definition import variable_values
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError


def test_names_are_part_of_the_pipeline_and_values_are_not() -> None:
    assert Pipeline("p", environment=["SHOP_TOKEN", "https_proxy", "SHOP_TOKEN"]).environment == (
        "SHOP_TOKEN",
        "https_proxy",
    )
    assert variable_values("p", ["SHOP_TOKEN"], {"SHOP_TOKEN": "secret", "OTHER": "x"}) == {"SHOP_TOKEN": "secret"}
    assert variable_values("p", ["EMPTY"], {"EMPTY": ""}) == {"EMPTY": ""}


def test_one_that_is_not_set_is_named_with_where_to_set_it() -> None:
    with pytest.raises(
        ConfigurationError, match="pipeline 'p' names environment variable 'SHOP_TOKEN', which is not set in"
    ) as caught:
        variable_values("p", ["OTHER", "SHOP_TOKEN"], {"OTHER": "secret"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("SHOP_TOKEN", "write \\['SHOP_TOKEN'\\]"),
        (["SHOP_TOKEN=secret"], "no name of a variable"),
        ([""], "no name of a variable"),
        ([None], "no name of a variable"),
        (["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], "Airflow's own settings hold its secrets"),
        (["AIRFLOW_CONN_WAREHOUSE"], "Name a connection"),
        (["LOGIO_URL"], "settings of this provider"),
    ],
)
def test_what_is_refused(names: Any, words: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=words) as caught:
        Pipeline("p", environment=names)
    assert "=secret" not in str(caught.value), "a value that was written there must not be in a log"
