"""The examples of docs/reference-pipelines.md: each public name of pipeline authors, in code that tests run.

`.ci/reference` quotes them, and refuses a ready-made class or function whose example leaves an argument out.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio import (
    AllOfRun,
    BatchGenerator,
    BatchOperator,
    ByKey,
    CheckableWriter,
    ConditionalWriter,
    ConnectedSource,
    Count,
    DatasetWriter,
    Days,
    DeltaSource,
    DeltaWriter,
    Dispatcher,
    EveryEvents,
    External,
    FolderSource,
    FrameOperator,
    FunctionOperator,
    FunctionRead,
    Group,
    Hours,
    IdempotentWriter,
    InputEvent,
    InputSet,
    LeastLoaded,
    LineageScope,
    ManualOperator,
    Marker,
    Merger,
    Node,
    Operator,
    OwnPartition,
    ParquetSource,
    ParquetWriter,
    Partition,
    Pipeline,
    PortTable,
    PublishedFile,
    QuerySource,
    RangeConnection,
    RangeSource,
    Replicated,
    RoundRobin,
    SinkOperator,
    SourceBatch,
    SourceConnection,
    SourceOperator,
    SparkSource,
    StatefulOperator,
    StatelessOperator,
    Sums,
    Synchronized,
    TableRead,
    TableSource,
    TableWriter,
    Tumbling,
    Window,
    WindowedOperator,
    WriteAction,
    WriterOperator,
    filtered,
    from_every,
    from_one,
    generate,
    joined,
    lineage_paths,
    lineage_ports,
    open_store,
    published_files,
    selected,
    stateless,
    summed,
    window_start,
)
from airflow_logio.contrib.paper_api import EventInfo, Logio, StateInfo
from airflow_logio.supervision.policies import DS2, Decision, Figures, Policy, Schedule, Threshold

# [START Pipeline]
shop = Pipeline(
    "shop",
    params={"sales": str},
    connections=["warehouse"],
    environment=["SHOP_TOKEN"],
    fuse=True,
    partition=None,
    zone="Etc/UTC",
)
sales = shop.source("sales", ParquetSource("{sales}", ordered_by="at", records_per_event=100))
hourly = shop.operator(
    "hourly", summed(by=["store_id"], of=["cents"], start="hour"), sales, window=Tumbling("1h", on="at")
)
saved = shop.writer(
    "saved",
    TableWriter("warehouse", "hourly", columns={"hour": "timestamp", "store_id": "bigint", "cents": "bigint"}),
    hourly,
)
shop.sink("done", Count(), saved)

shop.group("entry", sales, spark={"spark.driver.memory": "1g"})
totals_group = shop.group("totals", hourly, "saved", "done", standby=1)
shop.limit(hourly, max_seconds=60, on_overrun="recover")
scope = shop.lineage(sales, hourly, retention="7d")
shop.column_lineage(hourly, {"cents": "cents"})
shop.local_defaults(params={"sales": lambda: "sales.parquet"}, connections={"warehouse": "warehouse.db"})
# [END Pipeline]

# [START Days]
daily = Pipeline("daily", partition=Days("day", zone="Europe/Berlin", early=False))
daily.sink("counted", Count(), daily.source("web", ParquetSource("web/dt={day}/*.parquet")))
march = Days("day", zone="Europe/Berlin").key_of("2026-03-01")
assert daily.check_params({}, march) == {
    "day": "2026-03-01",
    "day_start": "2026-02-28T23:00:00+00:00",
    "day_end": "2026-03-01T23:00:00+00:00",
}
# [END Days]

# [START Hours]
hours = Hours("hour", zone="Europe/Berlin", early=False)
assert [key.text for key in hours.range_of("2026-10-25T02:00+02:00..2026-10-25T02:00+01:00")] == [
    "2026-10-25T00Z",
    "2026-10-25T01Z",
]
# [END Hours]

# [START Node]
assert isinstance(hourly, Node) and hourly.name == "hourly"
assert hourly.port("out") == hourly.out == shop.output("hourly.out") == shop.output("hourly")
# [END Node]

# [START Group]
assert isinstance(totals_group, Group)
assert totals_group.operators == ("hourly", "saved", "done")
assert shop.groups["totals"].standby == 1
# [END Group]

# [START Replicated]
scaled = Pipeline("scaled", params={"sales": str})
bought = scaled.operator("bought", filtered(pc.field("cents") > 0), scaled.source("sales", ParquetSource("{sales}")))
scaled.sink("done", Count(), bought)
replicated = scaled.replicate(bought, partition=RoundRobin(slots=8), min=1, max=4, initial=2, ordered=True)
assert isinstance(replicated, Replicated)
assert (replicated.least, replicated.most, replicated.slots) == (1, 4, 8)
assert scaled.applications_of("bought[3]") == replicated.replicas
# [END Replicated]

# [START LineageScope]
assert isinstance(scope, LineageScope)
assert (scope.start, scope.target) == (sales.out, hourly.out)
assert scope.retention_seconds == 7 * 24 * 3600
# [END LineageScope]

# [START WindowedOperator]
assert isinstance(shop.operators["hourly"], WindowedOperator)
# [END WindowedOperator]

# [START FunctionOperator]
assert isinstance(scaled.unreplicated().operators["bought"], FunctionOperator)
# [END FunctionOperator]

# [START lineage_paths]
assert [len(path) for path in lineage_paths(shop.graph, scope)] == [3]  # sales.out, hourly.in, hourly.out
# [END lineage_paths]

# [START lineage_ports]
ports_in, ports_out = lineage_ports(shop.graph, [scope])["hourly"]
assert (set(ports_in), set(ports_out)) == ({"in"}, {"out"})
# [END lineage_ports]


# [START stateless]
@stateless
def large(records: pa.Table) -> pa.Table:
    return records.filter(pc.field("cents") > 10_000)


# With everything that can be said:
@stateless(
    mode="driver",
    inputs=("in",),
    outputs=("cheap", "dear"),
    columns=("store_id", "cents"),
    state_version=1,
    on_error="quarantine",
    materialize_input=False,
    depends=from_one(),
)
def by_price(records: pa.Table, params: Mapping[str, Any]) -> dict[str, pa.Table]:
    dear = pc.greater(records.column("cents"), params["limit"])
    return {"cheap": records.filter(pc.invert(dear)), "dear": records.filter(dear)}


sold = pa.table({"store_id": [1, 1, 2], "cents": [5, 70, 90]})
assert by_price(sold, {"limit": 50})["dear"].num_rows == 2
# [END stateless]


# [START generate]
@generate
def how_many(records: pa.Table) -> pa.Table:
    return pa.table({"records": [records.num_rows]})


# With everything that can be said:
@generate(
    mode="driver",
    inputs=("in",),
    outputs=("out",),
    columns=("store_id", "product_id", "cents"),
    reads={"products": TableRead("warehouse", "products", columns=("product_id", "name"), key="product_id")},
    accumulate=None,
    finish=None,
    state_version=1,
    on_error="quarantine",
    order_insensitive=True,
    depends={"hour": window_start},
    many=False,
)
def best_seller(records: pa.Table, products: pa.Table, window_start: dt.datetime) -> pa.Table | None:
    named = records.join(products, "product_id")
    best = (
        named.group_by("name", use_threads=False).aggregate([("cents", "sum")]).sort_by([("cents_sum", "descending")])
    )
    return best.slice(0, 1).append_column("hour", pa.array([window_start], pa.timestamp("us")))


# A plan of Spark for many Input Sets; without many=True it would get one, and no column inset_id:
@generate(mode="dataframe", many=True)
def of_many(records: Any) -> Any:
    return records.groupBy("inset_id", "store_id").sum("cents")


# [END generate]


# [START BatchOperator]
@generate(mode="executors")
def biggest(records: Any) -> Any:
    """A DataFrame of Spark: the records of one Input Set."""
    return records.groupBy().max("cents")


batched = Pipeline("batched", params={"sales": str})
batched.operator("biggest", biggest, batched.source("sales", ParquetSource("{sales}")), window=EveryEvents(10))
batched.sink("done", Count(), "biggest")
assert isinstance(batched.operators["biggest"], BatchOperator)
# [END BatchOperator]

# [START filtered]
positive = filtered((pc.field("cents") > 0) & pc.field("store_id").is_valid())
# [END filtered]

# [START selected]
renamed = selected({"shop": "store_id", "cents": "cents"})
# [END selected]

# [START summed]
per_store = summed(by=["store_id"], of=["cents"], start="hour")  # with window=Tumbling("1h", on="at")
# [END summed]

# [START joined]
named = joined(
    "products",
    TableRead("warehouse", "products", key="product_id"),
    on="product_id",
    columns={"product": "name"},
)
# [END joined]


# [START OwnPartition]
berlin = Pipeline("berlin", partition=Days("day", zone="Europe/Berlin"))
clicks = berlin.source("clicks", ParquetSource("web/dt={day}/*.parquet"))
berlin.operator("own", OwnPartition("day", on="ts", mode="driver"), clicks)
berlin.sink("counted", Count(), "own.own")
berlin.sink("late", Count(), "own.other")
# [END OwnPartition]


# [START Sums]
@generate(accumulate=Sums(by=["store_id"], of=["cents"]))
def top_stores(sums: pa.Table) -> pa.Table:
    return sums.sort_by([("cents", "descending")]).slice(0, 10)


assert top_stores(pa.table({"store_id": [1, 2], "cents": [5, 9]})).column("store_id").to_pylist() == [2, 1]
# [END Sums]


# [START from_one]
@stateless(depends=from_one({"shop": "store_id"}))
def shops(records: pa.Table) -> pa.Table:
    return records.rename_columns({"store_id": "shop"}).select(["shop", "cents"])


# [END from_one]


# [START from_every]
@generate(depends=from_every({"store_id": "store_id", "hour": window_start}))
def visits(records: pa.Table, window_start: dt.datetime) -> pa.Table:
    counted = records.group_by("store_id", use_threads=False).aggregate([("cents", "count")])
    return counted.append_column("hour", pa.repeat(pa.scalar(window_start, pa.timestamp("us")), counted.num_rows))


# [END from_every]

# [START TableRead]
products = TableRead("warehouse", "products", columns=("product_id", "name"), key="product_id")
# [END TableRead]


# [START FunctionRead]
def rates(url: str, keys: pa.Array | None, params: Mapping[str, Any]) -> pa.Table:
    """Asks whatever `url` says; `keys` are the currencies of the records."""
    return pa.table({"currency": keys, "rate": pa.array([params["rate"]] * len(keys or []))})


exchange = FunctionRead("bank", rates, description={"what": "rates"}, key="currency", unavailable=(OSError,))
# [END FunctionRead]

# [START EveryEvents]
every_hundred = EveryEvents(count=100)
# [END EveryEvents]

# [START Tumbling]
quarters = Tumbling("15m", on="at", windows_per_event=1_000)
days_of_berlin = Tumbling("1d", on="at", zone="Europe/Berlin")
# [END Tumbling]


# [START Synchronized]
@generate(inputs=("ordered", "received"))
def missing(ordered: pa.Table, received: pa.Table) -> pa.Table:
    return ordered.join(received, "order_id", join_type="left anti")


orders = Pipeline("orders", params={"ordered": str, "received": str})
orders.operator(
    "missing",
    missing,
    window=Synchronized({"ordered": 5, "received": 5}, incomplete="generate", ordered=False),
    ordered=orders.source("ordered", ParquetSource("{ordered}")),
    received=orders.source("received", ParquetSource("{received}")),
)
orders.sink("done", Count(), "missing")
assert Synchronized(a=5, b=5) == Synchronized({"a": 5, "b": 5})
# [END Synchronized]


# [START AllOfRun]
@generate
def largest(records: pa.Table) -> pa.Table:
    """Of the whole day, as a script sees it."""
    return records.sort_by([("cents", "descending"), ("id", "ascending")]).slice(0, 10)


whole_day = Pipeline("whole_day", partition=Days("day", zone="Europe/Berlin"))
of_day = whole_day.source("sales", ParquetSource("sales/dt={day}/*.parquet"))
whole_day.sink("done", Count(), whole_day.operator("largest", largest, of_day, window=AllOfRun()))
# [END AllOfRun]


# [START Window]
class Batches(Window):
    """Input Sets ``"0"``, ``"1"``, ... of the events with numbers 0 to 99, 100 to 199, ... of the sender."""

    def initial_state(self) -> dict[str, Any]:
        return {"latest": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        state["latest"] = event.event_id // 100
        return {str(state["latest"]): event.table}

    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted((one for one in open_insets if int(one) < state["latest"]), key=int)

    def order(self, inset_id: str) -> int:
        return int(inset_id)

    def describe(self) -> dict[str, Any]:
        return {"window": "batches"}


# [END Window]


# [START ParquetSource]
def in_cents(records: pa.Table) -> pa.Table:
    cents = pc.round(pc.multiply(records.column("amount"), 100.0)).cast(pa.int64())
    return records.drop_columns(["amount"]).append_column("cents", cents)


transactions = ParquetSource(
    "/data/transactions-*.parquet",
    ordered_by="at",
    records_per_event=1_000,
    columns=("store_id", "amount", "at"),
    transform=in_cents,
)
# [END ParquetSource]

# [START QuerySource]
customers = QuerySource(
    "warehouse",
    "SELECT id, name FROM customers WHERE region = :region ORDER BY id",
    columns={"id": "bigint", "name": "text"},
    records_per_event=500,
    replayable=True,
    order_by="id",
    append_only=True,
)
whole_table = QuerySource("warehouse", table="public.customers")
# [END QuerySource]

# [START TableSource]
growing = TableSource(
    "warehouse",
    "orders",
    by="id",
    columns=("id", "store_id", "cents"),
    rows_per_event=100_000,
    append_only=True,
    store=False,
    unbounded=True,
)
# [END TableSource]

# [START FolderSource]
arriving = FolderSource("/data/{country}", files_per_event=8, unbounded=True)
counted = FolderSource("/shared/lake/orders/country={country}", published=True)
# [END FolderSource]

# [START DeltaSource]
added = DeltaSource("/lake/orders", from_version="{since}", versions_per_event=10)
whole = DeltaSource("s3://lake/shops?region=eu-central-1", snapshot=True)
feed = DeltaSource("/lake/{country}", changes=True, snapshot=True, unbounded=True, reader="delta")
# [END DeltaSource]


# [START SparkSource]
def from_catalog(spark: Any, params: Mapping[str, Any]) -> Any:
    return spark.table("lake.orders").where(f"country = '{params['country']}'")


catalog = SparkSource(from_catalog, ordered_by="at", bytes_per_event="128 MB", unavailable=(ConnectionError,))
# [END SparkSource]


# [START SourceOperator]
class Countdown(SourceOperator):
    """Read actions 3, 2, 1 of ten records each, two events per action."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"left": 3}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"left": previous["left"] - 1} if previous["left"] > 1 else None

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for begin in range(offset, 10, 5):
            records = pa.table({"left": [action["left"]] * 5, "n": range(begin, begin + 5)})
            yield SourceBatch(records, begin + 5, about={"first": begin, "last": begin + 4})


assert [batch.next_offset for batch in Countdown().read({}, {"left": 3}, offset=5)] == [10]
# [END SourceOperator]


# [START ConnectedSource]
class Measurements(ConnectedSource):
    """The rows of a query, whatever it answers: what it has read is stored, and not asked for again."""

    replayable = False
    unavailable = (sqlite3.OperationalError,)

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"since": params["since"]}

    def read_from(
        self, connection: SourceConnection, params: Mapping[str, Any], action: Mapping[str, Any], offset: int
    ) -> Iterator[SourceBatch]:
        statement = "SELECT id, celsius FROM measurements WHERE id > :since"
        for records in connection.query(statement, {"since": action["since"]}, {"id": "bigint", "celsius": "double"}):
            offset += records.num_rows
            yield SourceBatch(records, offset)


measurements = Measurements("station")
# [END ConnectedSource]


# [START RangeSource]
class Numbered(RangeSource):
    """Ranges of a table with a column of rising numbers, at most a million rows each, until the run is drained."""

    def __init__(self, connection: RangeConnection | None = None) -> None:
        self._connection = connection

    def connections(self) -> tuple[str, ...]:
        return ("warehouse",)

    def connected(self, connections: Any) -> Numbered:
        return Numbered(connections("warehouse"))

    def first(self, params: Mapping[str, Any]) -> Any:
        return 0

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any | None) -> Any:
        return start + 1_000_000

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
        assert self._connection is not None
        return self._connection.rows("orders", by="id", after=start, until=end)


# [END RangeSource]

# [START TableWriter]
writer = TableWriter(
    "warehouse",
    "shop.totals",
    columns={"hour": "timestamp", "store_id": "bigint", "amount": "decimal(12,2)"},
    primary_key=("hour", "store_id"),
    on_new_run="replace",
    sends_after_writes=True,
    lineage_column="event_id",
)
top = TableWriter(
    "warehouse",
    "shop.top",
    columns={"day": "date", "rank": "bigint", "page": "text"},
    primary_key=("day", "rank"),
    on_new_run="overwrite",
    by=("day",),
    empty="refuse",
    switch="at the end",
    audit={"ranks begin at 1": "SELECT rank FROM shop.top WHERE day = :day AND rank < 1"},
)
changed = TableWriter(
    "warehouse",
    "shop.customers",
    columns={"id": "bigint", "updated_at": "timestamptz", "email": "text"},
    primary_key=("id",),
    mode="upsert",
    version="updated_at",
)
late = TableWriter(
    "warehouse",
    "shop.late",
    columns={"ts": "timestamptz", "page": "text"},
    on_new_run="supersede",
    run_column="logio_run",
)
# [END TableWriter]

# [START ParquetWriter]
files = ParquetWriter(
    "lake", "totals", compression="zstd", schema=pa.schema([("store_id", pa.int64()), ("cents", pa.int64())])
)
# [END ParquetWriter]

# [START DatasetWriter]
dataset = DatasetWriter("lake", "orders", partition_by=["country"], on_new_run="replace")
own_day = DatasetWriter(
    "lake",
    "clicks",
    partition_by=["day", "country"],
    on_new_run="overwrite",
    by=["day"],
    empty="replace",
    audit={"no refunds": "SELECT * FROM records WHERE cents < 0"},
)
filled_pages = DatasetWriter(
    "lake", "pages", partition_by=["day"], on_new_run="overwrite", by=["day"], switch="at once"
)
late_clicks = DatasetWriter("lake", "late_clicks", on_new_run="supersede")
# [END DatasetWriter]

# [START DeltaWriter]
delta = DeltaWriter(
    "lake",
    "orders",
    columns={"day": "date", "id": "bigint", "amount": "decimal(10,2)"},
    partition_by=["day"],
    on_new_run="append",
)
newest = DeltaWriter("lake", "customers", mode="upsert", primary_key=["id"], version="updated_at")
day_of_delta = DeltaWriter(
    "lake", "sales", on_new_run="overwrite", by=["day"], empty="replace", audit={"few": lambda records: None}
)
filled_delta = DeltaWriter(
    "lake", "pages", on_new_run="overwrite", by=["day"], switch="at once", sends_after_writes=True
)
late_delta = DeltaWriter(
    "lake", "late_sales", columns={"amount": "double"}, on_new_run="supersede", run_column="logio_run"
)
# [END DeltaWriter]


# [START published_files]
def published_rows(folder: Path) -> int:
    """The records that count, whatever else lies in the folder."""
    files: list[PublishedFile] = published_files(folder)
    return sum(pq.read_metadata(file.path).num_rows for file in files)


# [END published_files]

# [START Count]
counting = Count()  # pipeline.sink("done", counting, saved)
# [END Count]


# [START ConditionalWriter]
class Journal(ConditionalWriter[sqlite3.Connection]):
    """The records and the marker in one transaction."""

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        client = sqlite3.connect(url, isolation_level=None)
        client.execute("CREATE TABLE IF NOT EXISTS markers (key TEXT PRIMARY KEY, number INTEGER, token INTEGER)")
        client.execute("CREATE TABLE IF NOT EXISTS entries (cents INTEGER)")
        yield client
        client.close()

    def apply(self, client: sqlite3.Connection, marker: Marker, actions: Sequence[WriteAction]) -> None:
        client.execute("BEGIN IMMEDIATE")
        try:
            row = client.execute("SELECT number, token FROM markers WHERE key = ?", [marker.key]).fetchone() or (0, 0)
            for action in marker.unapplied(actions, number=row[0], token=row[1]):
                cents = action.records.column("cents").to_pylist()
                client.executemany("INSERT INTO entries VALUES (?)", [(one,) for one in cents])
            new = [marker.key, actions[-1].number, marker.token]
            client.execute("INSERT OR REPLACE INTO markers VALUES (?, ?, ?)", new)
            client.execute("COMMIT")
        except BaseException:
            client.execute("ROLLBACK")
            raise


journal = Journal("books")
assert isinstance(journal, WriterOperator)
# [END ConditionalWriter]


# [START CheckableWriter]
class Ledger(CheckableWriter[sqlite3.Connection]):
    """Has no transaction for a marker, but keeps the key of each action."""

    @contextmanager
    def connect(self, url: str) -> Iterator[sqlite3.Connection]:
        client = sqlite3.connect(url, isolation_level=None)
        client.execute("CREATE TABLE IF NOT EXISTS postings (key TEXT, cents INTEGER)")
        yield client
        client.close()

    def is_applied(self, client: sqlite3.Connection, action: WriteAction) -> bool:
        return client.execute("SELECT 1 FROM postings WHERE key = ?", [action.key]).fetchone() is not None

    def write(self, client: sqlite3.Connection, action: WriteAction) -> None:
        client.execute(
            "INSERT INTO postings VALUES (?, ?)", [action.key, pc.sum(action.records.column("cents")).as_py()]
        )


ledger = Ledger("books")
# [END CheckableWriter]


# [START IdempotentWriter]
class Drop(IdempotentWriter[Path]):
    """A CSV file per action: executed again, it writes the same file."""

    @contextmanager
    def connect(self, url: str) -> Iterator[Path]:
        yield Path(url)

    def write(self, client: Path, action: WriteAction) -> None:
        lines = [",".join(map(str, row.values())) for row in action.records.to_pylist()]
        (client / action.key.replace("/", ".")).write_text("\n".join(lines))


drop = Drop("folder")
# [END IdempotentWriter]


# [START StatelessOperator]
class Rated(StatelessOperator):
    """Adds the rate of each currency, and sends what is too small to another port."""

    outputs = ("out", "small")

    def connections(self) -> tuple[str, ...]:
        return ("bank",)

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        found = external.read(exchange, pc.unique(event.table.column("currency")))
        rated = event.table.join(found, "currency", use_threads=False)
        small = pc.less(rated.column("cents"), external.params["least"])
        yield "out", rated.filter(pc.invert(small))
        yield "small", rated.filter(small)


# [END StatelessOperator]


# [START StatefulOperator]
class Changes(StatefulOperator):
    """An Input Set of the events with numbers 0 to 9 of the sender, one of 10 to 19, and so on."""

    def initial_state(self) -> dict[str, Any]:
        return {"open": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["open"] = event.event_id // 10
        return {str(state["open"]): event.table}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return [one for one in open_insets if int(one) < state["open"]]

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        yield "out", pa.concat_tables(input_set.held)


# [END StatefulOperator]


# [START SinkOperator]
class Latest(SinkOperator):
    """Keeps the number of the latest event in its global state."""

    outputs = ()

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["latest"] = event.event_id
        return {}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return None

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        return ()


# [END SinkOperator]


# [START FrameOperator]
class Deduplicated(FrameOperator):
    """Records that stay with Spark's executors; the driver sees none of them."""

    def frames(self, port: str, frame: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": frame.dropDuplicates(["order_id"])}


lake = Pipeline("lake", params={"country": str}, connections=["lake"])
read = lake.source("read", FolderSource("/data/{country}"))
unique = lake.operator("unique", Deduplicated(), read)
published = lake.writer("published", DatasetWriter("lake", "orders"), unique)
lake.group("lake", read, unique, published, jobs_at_once=4)
# [END FrameOperator]


# [START BatchGenerator]
class Summed(StatefulOperator, BatchGenerator):
    """A generation is a plan of Spark; several share a job."""

    mode = "executors"  # type: ignore[assignment]

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        return {str(event.event_id): event.table}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event.table

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def run(self, records: Any, reads: Mapping[str, Any]) -> Any:
        return records.groupBy("store_id").sum("cents")

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise NotImplementedError("mode executors calls `run`")


# [END BatchGenerator]


# [START ManualOperator]
class Once(ManualOperator):
    """A source by hand: one event, logged in one transaction, whatever dies in between."""

    inputs = ()

    def run(self, logio: Logio) -> None:
        for event in logio.fetch_resend_events():
            logio.send(event.port)
        logio.initialize_context()
        if logio.get_proc_state() is None:
            with logio.begin_transaction() as transaction:
                transaction.log_source_event(EventInfo(logio.get_event_id("out"), "out"), pa.table({"n": [1]}))
                transaction.store_state(StateInfo(logio.get_state_id()), {"sent": True})
            logio.send("out")


# [END ManualOperator]


# [START Operator]
class Journaled(Rated):
    """What every operator may say of itself: ports, version, errors, guarantees of what it writes."""

    state_version = 2
    on_error = "quarantine"

    def writes(self) -> Mapping[str, str | None]:
        return {"bank": "idempotent"}

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        external.write("bank", event.table)
        yield "out", event.table


assert isinstance(Journaled(), Operator)
# [END Operator]

# [START RoundRobin]
in_turn = RoundRobin(slots=8)
# [END RoundRobin]

# [START LeastLoaded]
to_the_idle = LeastLoaded(slots=8)
# [END LeastLoaded]

# [START ByKey]
keyed = Pipeline("keyed", params={"sales": str})
stores = keyed.operator(
    "stores",
    summed(by=["store_id"], of=["cents"]),
    keyed.source("sales", ParquetSource("{sales}", ordered_by="at")),
    window=Tumbling("1h", on="at"),
)
keyed.sink("done", Count(), stores)
keyed.replicate(stores, partition=ByKey("store_id", slots=16), max=4)
# [END ByKey]


# [START Partition]
class Alternating(Partition):
    """Events with an even number to the first slot, the others to the second."""

    keyed = False

    def slots_for(self, replicas: int) -> int:
        return 2

    def part(self, event: InputEvent, slots: int, routes: Any) -> Iterable[tuple[int, pa.Table]]:
        yield event.event_id % 2, event.table

    def describe(self) -> dict[str, Any]:
        return {"partition": "even"}


# [END Partition]

# [START Dispatcher]
dispatch = Dispatcher(ByKey("store_id"), slots=4, windows=[Tumbling("1h", on="at")], ordered=False)
assert dispatch.outputs == ("slot0", "slot1", "slot2", "slot3")
# [END Dispatcher]

# [START Merger]
assert Merger(slots=4).inputs == dispatch.outputs
# [END Merger]

# [START DS2]
by_rate = DS2(
    minimum=1,
    maximum=8,
    work_off_seconds=60,
    cool_down_seconds=30,
    minimum_busy_seconds=0.2,
    minimum_records=1,
    tolerance=0.05,
)
# [END DS2]

# [START Threshold]
by_load = Threshold(
    minimum=1,
    maximum=8,
    up_lag_seconds=30,
    down_lag_seconds=5,
    up_busy=0.8,
    down_busy=0.4,
    step=1,
    cool_down_seconds=60,
)
# [END Threshold]

# [START Schedule]
by_clock = Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 1}, minimum=1, maximum=4)
# [END Schedule]


# [START Policy]
class Backlog(Policy):
    """A replica per thousand records that wait."""

    def wanted(self, figures: Figures) -> Decision:
        return Decision(1 + figures.backlog // 1_000, f"{figures.backlog:,} records wait")


seen = Figures("enrich", at=0.0, replicas=1, least=0, most=4, backlog=2_500)
assert Backlog(maximum=8).decide(seen).replicas == 3
assert Backlog().decide(replace(seen, backlog=9_000)).replicas == 4  # the author's bound
# [END Policy]


def open_log(folder: Path) -> None:
    # [START open_store]
    store = open_store(f"sqlite:///{folder / 'log.db'}", create=True, application="report", connections=2)
    assert list(store.list_runs(pipeline="shop", limit=10)) == []
    # [END open_store]
