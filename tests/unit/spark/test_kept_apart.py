"""Plans over many Input Sets: those that keep them apart, and those that are refused with the node that does not."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_logio.errors import OperatorFailed
from airflow_logio.spark.kept_apart import check_kept_apart, have_whole_keys, marked_read, marked_records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

COLUMNS = "inset_id long, window_start timestamp, kind string, cents long, store int, tags array<string>"
Function = Callable[[Any, Any, Any], Any]


def window(*keys: Any) -> Any:
    from pyspark.sql import Window

    return Window.partitionBy(*keys)


def sql(text: str) -> Function:
    """A query of views `rows` and `shops`, which is a read by key `store`."""

    def made(rows: Any, shops: Any, F: Any) -> Any:
        rows.createOrReplaceTempView("rows")
        shops.createOrReplaceTempView("shops")
        return rows.sparkSession.sql(text)

    return made


def in_pandas(*keys: str) -> Function:
    return lambda rows, shops, F: rows.groupBy(*keys).applyInPandas(lambda frame: frame, rows.schema)


def cogrouped(*keys: str) -> Function:
    def made(rows: Any, shops: Any, F: Any) -> Any:
        return rows.groupBy(*keys).cogroup(rows.groupBy(*keys)).applyInPandas(lambda one, other: one, rows.schema)

    return made


def scalar(rows: Any, shops: Any, F: Any) -> Any:
    from pyspark.sql.functions import udf

    return rows.withColumn("kind", udf(lambda text: text, "string")("kind"))


def mean(rows: Any, shops: Any, F: Any, *keys: str) -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def of(values: Any) -> Any:
        return values.mean()

    of.__annotations__ = {"values": pd.Series, "return": float}  # so that it is an aggregation
    made = rows.groupBy(*keys).agg(pandas_udf(of, "double")("cents").alias("mean"))
    return made.selectExpr(*(keys or ("0L AS inset_id",)), "mean")


APART: dict[str, Function] = {
    "as it is": lambda rows, shops, F: rows,
    "row by row": lambda rows, shops, F: rows.where("cents > 3").withColumn("more", F.col("cents") + 1).drop("kind"),
    "brackets in texts": lambda rows, shops, F: (
        rows.where("kind NOT IN ('(', ']', '[x#1, y')").groupBy("inset_id", F.regexp_replace("kind", "[(]", "")).count()
    ),
    "a text of two lines": lambda rows, shops, F: rows.where("kind <> 'a\nb'").groupBy("inset_id").count(),
    "aggregate": lambda rows, shops, F: rows.groupBy("inset_id", "window_start", "kind").agg(F.sum("cents")),
    "aggregate by expressions": lambda rows, shops, F: rows.groupBy(F.upper("kind"), "inset_id").count(),
    "key last, aliased": lambda rows, shops, F: (
        rows.select(F.col("inset_id").alias("day"), "cents").groupBy("day").count().withColumnRenamed("day", "inset_id")
    ),
    "cast": lambda rows, shops, F: (
        rows.withColumn("inset_id", F.col("inset_id").cast("int")).groupBy("inset_id").agg(F.max("cents"))
    ),
    "cast to text and back": lambda rows, shops, F: (
        rows.groupBy(F.col("inset_id").cast("string").alias("day"))
        .count()
        .select(F.col("day").cast("long").alias("inset_id"), "count")
    ),
    "window": lambda rows, shops, F: (
        rows.withColumn("rank", F.row_number().over(window("inset_id", "kind").orderBy("cents", "store")))
        .where("rank = 1")
        .drop("rank")
    ),
    "two windows": lambda rows, shops, F: rows.withColumns(
        {
            "rank": F.rank().over(window("kind", "inset_id").orderBy("cents")),
            "total": F.sum("cents").over(window("inset_id")),
        }
    ),
    "duplicates": lambda rows, shops, F: rows.dropDuplicates(["inset_id", "kind"]),
    "distinct": lambda rows, shops, F: rows.select("inset_id", "kind").distinct(),
    "sql distinct": sql("SELECT DISTINCT kind, inset_id FROM rows"),
    "join": lambda rows, shops, F: rows.join(
        rows.groupBy("inset_id", "kind").agg(F.avg("cents").alias("mean")), ["inset_id", "kind"]
    ),
    "join on a condition": lambda rows, shops, F: (
        rows.alias("a")
        .join(rows.alias("b"), F.expr("a.inset_id = b.inset_id AND a.cents < b.cents"), "left")
        .select("a.inset_id", "b.cents")
    ),
    "null-safe": lambda rows, shops, F: (
        rows.alias("a").join(rows.alias("b"), F.expr("a.inset_id <=> b.inset_id")).select("a.inset_id", "b.cents")
    ),
    "semi join": lambda rows, shops, F: rows.join(rows.where("cents > 9"), ["inset_id", "store"], "left_semi"),
    "full join": lambda rows, shops, F: (
        rows.where("store = 1")
        .select("inset_id", "kind")
        .join(rows.where("store = 2").select("inset_id", "kind", "cents"), ["inset_id", "kind"], "full")
        .groupBy("inset_id")
        .count()
    ),
    "right join": lambda rows, shops, F: (
        rows.select("inset_id", "kind").join(rows.select("inset_id", "cents"), "inset_id", "right").distinct()
    ),
    "a table of its own": lambda rows, shops, F: rows.join(
        F.broadcast(rows.sparkSession.range(5).withColumnRenamed("id", "store")), "store", "left"
    ),
    "cross join with an aggregated table": lambda rows, shops, F: rows.crossJoin(
        rows.sparkSession.range(5).groupBy().max("id")
    ),
    "the last of a table": lambda rows, shops, F: rows.crossJoin(
        rows.sparkSession.range(5).orderBy(F.desc("id")).limit(1)
    ),
    "a read by key": lambda rows, shops, F: rows.join(shops, "store", "left").groupBy("inset_id", "city").count(),
    "a read by key, broadcast": lambda rows, shops, F: rows.join(F.broadcast(shops), "store"),
    "a read by key, as texts": lambda rows, shops, F: rows.join(
        shops, rows["store"].cast("string") == shops["store"].cast("string")
    ).select("inset_id", "city"),
    "a read by key, grouped by it": lambda rows, shops, F: rows.join(
        shops.groupBy("store").agg(F.max("city").alias("city")), "store"
    ),
    "union": lambda rows, shops, F: rows.where("store = 1").union(rows.where("store = 2")).groupBy("inset_id").count(),
    "union by name": lambda rows, shops, F: (
        rows.select("kind", "inset_id").unionByName(rows.select("inset_id", "kind")).distinct()
    ),
    "except": lambda rows, shops, F: rows.select("inset_id", "kind").subtract(
        rows.where("cents > 3").select("inset_id", "kind")
    ),
    "intersect": sql("SELECT inset_id, kind FROM rows INTERSECT ALL SELECT inset_id, kind FROM rows WHERE cents > 3"),
    "grouping sets": sql("SELECT inset_id, kind, count(*) FROM rows GROUP BY inset_id, GROUPING SETS ((kind), ())"),
    "pivot": lambda rows, shops, F: rows.groupBy("inset_id").pivot("kind", ["a", "b"]).sum("cents"),
    "unpivot": lambda rows, shops, F: (
        rows.unpivot(["inset_id"], ["cents", F.col("store").cast("long").alias("store")], "what", "value")
        .groupBy("inset_id", "what")
        .agg(F.sum("value"))
    ),
    "explode": lambda rows, shops, F: (
        rows.select("inset_id", F.explode("tags").alias("tag")).groupBy("inset_id", "tag").count()
    ),
    "sort": lambda rows, shops, F: rows.orderBy("cents").groupBy("inset_id").agg(F.collect_list("cents")),
    "repartition": lambda rows, shops, F: rows.repartition(4, "kind").coalesce(1).hint("rebalance"),
    "pandas by group": in_pandas("inset_id", "kind"),
    "two groups in pandas": cogrouped("inset_id"),
    "a Python function": scalar,
    "an aggregation in pandas": lambda rows, shops, F: mean(rows, shops, F, "inset_id"),
    "a query with names": sql(
        "WITH sums AS (SELECT inset_id, kind, sum(cents) AS total FROM rows GROUP BY inset_id, kind), "
        "best AS (SELECT inset_id, max(total) AS total FROM sums GROUP BY inset_id) "
        "SELECT s.* FROM sums s JOIN best b ON s.inset_id = b.inset_id AND s.total = b.total"
    ),
    "a correlated subquery": sql(
        "SELECT inset_id, kind FROM rows a WHERE cents = (SELECT max(cents) FROM rows b WHERE b.inset_id = a.inset_id)"
    ),
    "exists": sql(
        "SELECT inset_id FROM rows a WHERE EXISTS (SELECT 1 FROM rows b WHERE b.inset_id = a.inset_id AND b.cents > 9)"
    ),
    "a subquery of a table": sql("SELECT * FROM rows WHERE store IN (SELECT id FROM range(3) ORDER BY id LIMIT 2)"),
    "nothing": lambda rows, shops, F: rows.limit(0),
}

MIXED: dict[str, tuple[str, Function]] = {
    "aggregate": ("Aggregate", lambda rows, shops, F: rows.groupBy("kind").agg(F.max("inset_id").alias("inset_id"))),
    "aggregate of all": ("Aggregate", lambda rows, shops, F: rows.groupBy().agg(F.first("inset_id").alias("inset_id"))),
    "in a key, not a key": (
        "Aggregate",
        lambda rows, shops, F: rows.groupBy((F.col("inset_id") % 2).alias("inset_id")).count(),
    ),
    "a literal key": (
        "Aggregate",
        lambda rows, shops, F: rows.withColumn("inset_id", F.lit(0)).groupBy("inset_id").count(),
    ),
    "a key among arguments": (
        "Aggregate",
        lambda rows, shops, F: rows.groupBy(F.coalesce("store", "inset_id", "cents").alias("inset_id")).count(),
    ),
    "window": (
        "Window",
        lambda rows, shops, F: (
            rows.withColumn("rank", F.row_number().over(window("kind").orderBy(F.desc("cents"))))
            .where("rank = 1")
            .select("inset_id", "kind", "cents")
        ),
    ),
    "ordered by it": (
        "Window",
        lambda rows, shops, F: rows.withColumn("n", F.rank().over(window("kind").orderBy("inset_id"))),
    ),
    "one window of two": (
        "Window",
        lambda rows, shops, F: rows.withColumns(
            {"a": F.sum("cents").over(window("inset_id")), "b": F.sum("cents").over(window("kind"))}
        ),
    ),
    "a window of all": ("Window", lambda rows, shops, F: rows.withColumn("n", F.sum("cents").over(window()))),
    "duplicates": ("Deduplicate", lambda rows, shops, F: rows.dropDuplicates(["kind"])),
    "distinct, and made again": (
        "Deduplicate",
        lambda rows, shops, F: rows.select("kind").distinct().withColumn("inset_id", F.lit(0).cast("long")),
    ),
    "sql distinct": ("Distinct", sql("SELECT DISTINCT kind, 0L AS inset_id FROM rows")),
    "limit": ("GlobalLimit", lambda rows, shops, F: rows.limit(3)),
    "the first": ("GlobalLimit", lambda rows, shops, F: rows.orderBy("cents").limit(1)),
    "offset": ("Offset", lambda rows, shops, F: rows.orderBy("cents").offset(2)),
    "join": (
        "Join",
        lambda rows, shops, F: rows.join(rows.select("kind", F.col("cents").alias("more")), "kind"),
    ),
    "cross join": (
        "Join",
        lambda rows, shops, F: rows.crossJoin(rows.groupBy("inset_id").count().select("count")),
    ),
    "join with or": (
        "Join",
        lambda rows, shops, F: (
            rows.alias("a")
            .join(rows.alias("b"), F.expr("a.inset_id = b.inset_id OR a.kind = b.kind"))
            .select("a.inset_id")
        ),
    ),
    "join with an equality that must not hold": (
        "Join",
        lambda rows, shops, F: (
            rows.alias("a")
            .join(rows.alias("b"), (F.col("a.inset_id") == F.col("b.inset_id")).isin(False))
            .select("a.inset_id", "b.cents")
        ),
    ),
    "join with or, and brackets in a text": (
        "Join",
        lambda rows, shops, F: (
            rows.alias("a")
            .join(rows.alias("b"), F.expr("a.inset_id = b.inset_id OR a.kind <> 'x) AND (y'"))
            .select("a.inset_id", "b.cents")
        ),
    ),
    "exists where it is not equal": (
        "a subquery",
        sql(
            "SELECT inset_id FROM rows a "
            "WHERE EXISTS (SELECT 1 FROM rows b WHERE (b.inset_id = a.inset_id) IN (false) AND b.cents > a.cents)"
        ),
    ),
    "join with another column": (
        "Join",
        lambda rows, shops, F: (
            rows.alias("a").join(rows.alias("b"), F.expr("a.inset_id = b.cents")).select("a.inset_id")
        ),
    ),
    "what a table has alone": (
        "Join",
        lambda rows, shops, F: rows.join(rows.sparkSession.range(5).withColumnRenamed("id", "store"), "store", "right"),
    ),
    "the other side of a left join": (
        "Aggregate",
        lambda rows, shops, F: (
            rows.alias("a")
            .join(rows.where("cents > 3").alias("b"), F.expr("a.inset_id = b.inset_id AND a.cents = b.cents"), "left")
            .groupBy("b.inset_id")
            .count()
        ),
    ),
    "a read by key, on another column": (
        "Join",
        lambda rows, shops, F: rows.join(shops.withColumnRenamed("store", "n"), F.expr("cents = n")),
    ),
    "all of a read by key": ("Join", lambda rows, shops, F: rows.join(shops, "store", "right")),
    "the number of a read by key": ("Aggregate", lambda rows, shops, F: rows.crossJoin(shops.groupBy().count())),
    "union with rows of none": (
        "Union",
        lambda rows, shops, F: rows.select("inset_id").union(rows.sparkSession.range(1)),
    ),
    "union of other columns": (
        "Union",
        lambda rows, shops, F: rows.select("inset_id", "cents").union(rows.select("cents", "inset_id")),
    ),
    "except": (
        "Except",
        lambda rows, shops, F: (
            rows.select("kind").subtract(rows.where("cents > 3").select("kind")).withColumn("inset_id", F.lit(0))
        ),
    ),
    "intersect": (
        "Intersect",
        sql("SELECT 0L AS inset_id, * FROM (SELECT kind FROM rows INTERSECT SELECT kind FROM rows WHERE cents > 3)"),
    ),
    "cube": ("", lambda rows, shops, F: rows.cube("inset_id", "kind").count()),
    "rollup": ("", lambda rows, shops, F: rows.rollup("inset_id", "kind").count()),
    "pivot": (
        "Aggregate",
        lambda rows, shops, F: (
            rows.groupBy("kind").pivot("inset_id", [0, 1]).sum("cents").withColumn("inset_id", F.lit(0))
        ),
    ),
    "sample": ("", lambda rows, shops, F: rows.sample(0.5, seed=1)),
    "numbers of tasks": (
        "something random",
        lambda rows, shops, F: rows.withColumn("n", F.monotonically_increasing_id()),
    ),
    "random": ("something random", lambda rows, shops, F: rows.withColumn("n", F.rand(1))),
    "the time": (r"current_timestamp\(\)", lambda rows, shops, F: rows.withColumn("at", F.current_timestamp())),
    "pandas": ("MapInPandas", lambda rows, shops, F: rows.mapInPandas(lambda batches: batches, rows.schema)),
    "arrow": ("MapInArrow", lambda rows, shops, F: rows.mapInArrow(lambda batches: batches, rows.schema)),
    "pandas by group": ("FlatMapGroupsInPandas", in_pandas("kind")),
    "two groups in pandas": ("FlatMapCoGroupsInPandas", cogrouped("kind")),
    "an aggregation in pandas": ("Aggregate", mean),
    "a query with names": (
        "Aggregate",
        sql("WITH best AS (SELECT max(cents) AS cents FROM rows) SELECT rows.* FROM rows JOIN best USING (cents)"),
    ),
    "a subquery of all": ("Aggregate", sql("SELECT * FROM rows WHERE cents > (SELECT avg(cents) FROM rows)")),
    "a list of all": ("a subquery", sql("SELECT * FROM rows WHERE cents IN (SELECT cents FROM rows WHERE kind = 'a')")),
    "correlated otherwise": (
        "",
        sql("SELECT * FROM rows a WHERE cents = (SELECT max(cents) FROM rows b WHERE b.kind = a.kind)"),
    ),
    "exists otherwise": (
        "a subquery",
        sql("SELECT * FROM rows a WHERE EXISTS (SELECT 1 FROM rows b WHERE b.kind = a.kind AND b.cents > 9)"),
    ),
    "lost, and numbered": (
        "not the one that it was given",
        lambda rows, shops, F: rows.select("kind", F.col("cents").alias("inset_id")),
    ),
    "lost, and a literal": (
        "not the one that it was given",
        lambda rows, shops, F: rows.drop("inset_id").withColumn("inset_id", F.lit(0).cast("long")),
    ),
    "of other rows": (
        "not the one that it was given",
        lambda rows, shops, F: rows.sparkSession.range(1).toDF("inset_id"),
    ),
    "through the driver": (
        "not the one that it was given",
        lambda rows, shops, F: rows.sparkSession.createDataFrame(rows.toArrow()),
    ),
}


@pytest.fixture
def given(spark: Any) -> tuple[Any, Any]:
    rows = [(place, dt.datetime(2024, 3, 9), kind, 7 * place, 1, ["x"]) for place in (0, 1) for kind in "ab"]  # noqa: DTZ001
    shops = spark.createDataFrame([(1, "Rome")], "store int, city string")
    return marked_records(spark.createDataFrame(rows, COLUMNS), "in"), marked_read(shops, "shops")


def test_plans_that_keep_input_sets_apart_are_taken(given: tuple[Any, Any]) -> None:
    from pyspark.sql import functions as F

    refused = {}
    for name, function in APART.items():
        try:
            check_kept_apart(function(*given, F), {"shops": "store"})
        except OperatorFailed as error:
            refused[name] = str(error)
    assert not refused, "\n".join(f"{name}: {said}" for name, said in refused.items())


def test_plans_that_mix_input_sets_are_refused_with_the_node_that_does(given: tuple[Any, Any]) -> None:
    from pyspark.sql import functions as F

    taken = []
    for name, (says, function) in MIXED.items():
        try:
            check_kept_apart(function(*given, F), {"shops": "store"})
        except OperatorFailed as error:
            if re.search(says, str(error)) and "leave many=True out" in str(error):
                continue
            taken.append(f"{name}: {error}")
        else:
            taken.append(f"{name}: taken")
    assert not taken, "\n".join(taken)


def test_a_key_that_is_rounded_finds_rows_of_other_input_sets(spark: Any) -> None:
    """1.5 has no shop; shop 1 is there because another Input Set has asked for it. Whole numbers stay apart."""
    for kind, is_taken in (("int", True), ("smallint", True), ("double", False), ("decimal(9,2)", False)):
        rows = spark.createDataFrame([], COLUMNS.replace("store int", f"store {kind}"))
        shops = spark.createDataFrame([], "store long, city string")
        given = marked_records(rows, "in"), marked_read(shops, "shops")
        whole = have_whole_keys(given, ["store"])
        assert whole == is_taken
        for key in ("CAST(rows.store AS BIGINT)", "CAST(r.wanted AS BIGINT)"):
            from_rows = (
                given[0].alias("rows") if "rows" in key else given[0].withColumnRenamed("store", "wanted").alias("r")
            )
            made = from_rows.join(given[1].alias("shops"), expr(f"{key} = shops.store")).select("inset_id", "city")
            if is_taken:
                check_kept_apart(made, {"shops": "store"}, whole_keys=whole)
                continue
            with pytest.raises(OperatorFailed, match=r"Join in its plan .*rounding_cast"):
                check_kept_apart(made, {"shops": "store"}, whole_keys=whole)


def expr(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)


def test_pipelines_of_the_examples_keep_input_sets_apart(spark: Any) -> None:
    """Those of the demo, of the storms and of the benchmarks that say many=True."""
    from pipelines.sales import hourly_sales
    from tests.support.bundle.paced_sales import hourly_sales as paced
    from tests.support.bundle.read_orders import labelled

    numbers = ("inset_id", "id", "store_id", "product_id", "quantity", "sales_cents")
    columns = ", ".join(["window_start timestamp", *(f"{name} long" for name in numbers)])
    rows = marked_records(spark.createDataFrame([], columns), "in")
    products = marked_read(spark.createDataFrame([], "product_id long, department string"), "products")
    labels = marked_read(spark.createDataFrame([], "id long, label string"), "labels")
    draws = spark.createDataFrame([], "id long, drawn long, noise double")
    check_kept_apart(hourly_sales(rows, products), {"products": "product_id"})
    check_kept_apart(labelled(rows, labels, draws), {"labels": "id"})
    check_kept_apart(paced(rows), {})
