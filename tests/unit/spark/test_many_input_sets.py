"""``many=True``: a plan over many Input Sets keeps them apart, and now and then one of them is generated alone as well."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import Tumbling, generate, stateless
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed
from airflow_logio.spark.content_digests import have_same_records
from tests.support.frame_groups import Group, orders_at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DAY = Tumbling("1d", on="ts")
HOURS = (1, 2, 3, 5, 25, 26, 27, 28, 30, 49, 50, 51, 60)


def group_of(tmp_path: Path, sessions: SparkSessions, mode: str, function: Any) -> Group:
    group = Group(tmp_path, sessions, orders=[orders_at(*HOURS)])
    rows = "from_orders"
    if mode == "executors":
        rows = group.operator("tables", stateless(lambda orders: orders), rows)
    daily = group.operator("daily", generate(mode=mode, many=True)(function), rows, window=DAY)
    group.save(daily)
    return group


def ranked(*keys: str) -> Any:
    def best(orders: Any) -> Any:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        rank = F.row_number().over(Window.partitionBy(*keys).orderBy(F.desc("cents")))
        return orders.withColumn("rank", rank).where("rank = 1").select("inset_id", "store", "cents")

    return best


@pytest.mark.parametrize("mode", ["dataframe", "executors"])
def test_a_plan_that_forgets_inset_id_is_refused_and_one_that_does_not_is_exact(
    tmp_path: Path, sessions: SparkSessions, mode: str
) -> None:
    """Before any result leaves; no Input Set is looked for, or set aside."""
    says = r"(?s)operator 'daily', Input Set '2024-03-09T00:00'.*function 'best': .*Window in its plan.*'inset_id' as a key"
    (tmp_path / "bad").mkdir()
    bad = group_of(tmp_path / "bad", sessions, mode, ranked("store"))
    with pytest.raises(OperatorFailed, match=says):
        bad.run()
    assert not list(bad.lake.rglob("*.parquet"))
    (tmp_path / "good").mkdir()
    good = group_of(tmp_path / "good", sessions, mode, ranked("inset_id", "store"))
    assert good.run()
    expected = good.expected("store, max(cents)", "GROUP BY date_trunc('day', ts), store")
    assert good.published("store, cents") == expected


@pytest.mark.parametrize("mode", ["dataframe", "executors"])
def test_what_no_plan_shows_is_found_by_one_input_set_alone(tmp_path: Path, sessions: SparkSessions, mode: str) -> None:
    """A value that the function has asked all Input Sets for."""

    def dearest(orders: Any) -> Any:
        (most,) = orders.groupBy().agg({"cents": "max"}).collect()[0]
        return orders.where(orders.cents == most).select("inset_id", "id")

    group = group_of(tmp_path, sessions, mode, dearest)
    says = (
        r"operator 'daily', Input Set '2024-03-\d\dT00:00'.*function 'dearest' has many=True, and makes other records"
    )
    with pytest.raises(OperatorFailed, match=says):
        group.run()
    assert not list(group.lake.rglob("*.parquet"))


def test_a_function_that_keeps_input_sets_apart_is_no_other_alone(
    tmp_path: Path, sessions: SparkSessions, caplog: pytest.LogCaptureFixture
) -> None:
    """Sums of floating-point numbers, lists, an Input Set without a result, groups in Python."""

    def several(orders: Any) -> Any:
        from pyspark.sql import functions as F

        sums = orders.where("ts < '2024-03-11'").groupBy("inset_id", "store")
        made = sums.agg(F.avg(F.col("cents") / 7).alias("mean"), F.collect_list("id").alias("ids"))
        return made.groupBy("inset_id").applyInPandas(lambda frame: frame, made.schema)

    caplog.set_level(logging.INFO)
    group = group_of(tmp_path, sessions, "dataframe", several)
    assert group.run()
    expected = group.expected(
        "round(avg(cents / 7), 6), list_sort(list(id))", "WHERE ts < '2024-03-11' GROUP BY date_trunc('day', ts), store"
    )
    assert group.published("round(mean, 6), list_sort(ids)") == expected


def test_records_are_compared_by_all_of_their_columns(spark: Any) -> None:
    def frame(*rows: str) -> Any:
        return spark.sql(
            "SELECT id, text, number, ids, part, named FROM VALUES "
            f"{', '.join(rows)} AS t(id, text, number, ids, part, named)"
        )

    one = "(1, 'a', 0.1D, array(1, 2), named_struct('x', 1.5D, 'y', 'b'), map('k', 1))"
    two = "(2, NULL, double('NaN'), array(), named_struct('x', double('inf'), 'y', NULL), map())"
    both = frame(one, two)
    assert have_same_records(both, frame(two, one))
    assert have_same_records(both.limit(0), None) and have_same_records(None, None)
    assert not have_same_records(both, None) and not have_same_records(None, both)
    assert have_same_records(both, frame(one.replace("0.1D", "0.1D + 1e-13D").replace("(1, 2)", "(2, 1)"), two))
    others = {
        "a record twice": [one, two, two],
        "one less": [one],
        "id": [one.replace("(1,", "(3,"), two],
        "text": [one.replace("'a'", "'b'"), two],
        "null": [one, two.replace("NULL, d", "'', d")],
        "number": [one.replace("0.1D", "0.2D"), two],
        "NaN": [one, two.replace("double('NaN')", "NULL")],
        "list": [one.replace("(1, 2)", "(1, 3)"), two],
        "field": [one.replace("'y', 'b'", "'y', 'c'"), two],
        "number in a field": [one.replace("1.5D", "1.6D"), two],
        "infinity": [one, two.replace("'inf'", "'-inf'")],
        "map": [one.replace("'k', 1", "'k', 2"), two],
        "numbers that have changed places": [
            one.replace("0.1D", "double('NaN')"),
            two.replace("double('NaN'), a", "0.1D, a"),
        ],
    }
    assert not [name for name, rows in others.items() if have_same_records(both, frame(*rows))]
