"""Where storms happen: log and warehouse in SQLite, the log on a disk that can be filled, or in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from airflow_logio.store.sql import migrate
from tests.store.small_disk import small_folder
from tests.support.postgres import PostgresServer
from tests.support.storm import outlets
from tests.support.storm.oracle import records_of
from tests.support.storm.outages import LOG_IS_MISSED, WAREHOUSE_IS_MISSED, Full, Locked, Outage, Refused, Stopped
from tests.support.storm.shape import COLUMNS, WEIGHTS, Chain, Kind, Shape, Terminal, drawn
from tests.support.warehouse import warehouse_engine


@dataclass(frozen=True, slots=True)
class Place:
    """Below `folder` is all that belongs to one storm, but for databases of a server."""

    folder: Path
    log_url: str
    warehouse_url: str
    outages: Mapping[str, Outage]
    """What may be away here: ``log``, ``warehouse``, and ``power`` or ``disk``."""

    @property
    def outlet(self) -> Path:
        return self.folder / "outlet"

    @property
    def payloads(self) -> Path:
        return self.folder / "payloads"

    @property
    def trouble(self) -> Path:
        """While it is there, some events are set aside."""
        return self.folder / "trouble"

    @property
    def over(self) -> Path:
        """While it is not there, no source ends."""
        return self.folder / "over"

    def furnish(self, shape: Shape) -> dict[str, str]:
        """Make what a run finds; returns its parameters."""
        self.trouble.touch()
        outlets.make(shape.outlet, self.outlet)
        engine = warehouse_engine(self.warehouse_url)
        with engine.begin() as connection:
            _fill(connection, "atlas", {"key": "bigint", "weight": "bigint"}, list(enumerate(WEIGHTS)))
            for chain in shape.chains:
                if chain.kind is Kind.TABLE:
                    _fill(connection, f"orders_{chain.source}", COLUMNS, records_of(shape.seed, chain))
        engine.dispose()
        files = {chain.source: str(self._file(shape.seed, chain)) for chain in shape.chains}
        return files | {"trouble": str(self.trouble), "over": str(self.over)}

    def _file(self, seed: int, chain: Chain) -> Path:
        path = self.folder / f"{chain.source}.parquet"
        columns = zip(*records_of(seed, chain), strict=True)
        pq.write_table(pa.table([pa.array(one, pa.int64()) for one in columns], names=list(COLUMNS)), path)
        return path


def place_of(seed: int, server: PostgresServer, folder: Path) -> AbstractContextManager[Place]:
    """SQLite or PostgreSQL, seed by seed. What Spark runs has no patience for locks of SQLite."""
    on_server = seed // 5 % 2 or drawn(seed).terminal is Terminal.SPARK
    return on_postgres(seed, server, folder) if on_server else on_sqlite(folder)


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Place]:
    with small_folder(folder) as disk:
        log, warehouse = disk.path / "log.db", folder / "warehouse.db"
        migrate.upgrade(f"sqlite:///{log}")
        outages = {
            "log": Locked(log, LOG_IS_MISSED),
            "warehouse": Locked(warehouse, WAREHOUSE_IS_MISSED),
            "disk": Full(disk),
        }
        yield Place(folder, f"sqlite:///{log}", f"sqlite:///{warehouse}", outages)


@contextmanager
def on_postgres(seed: int, server: PostgresServer, folder: Path) -> Iterator[Place]:
    """The warehouse is in the same server, or in SQLite, seed by seed."""
    log = server.new_database()
    on_server, file = bool(seed % 2), folder / "warehouse.db"
    warehouse = server.new_database(migrated=False) if on_server else f"sqlite:///{file}"
    outages: dict[str, Outage] = {
        "log": Refused(server, log, LOG_IS_MISSED),
        "warehouse": Refused(server, warehouse, WAREHOUSE_IS_MISSED)
        if on_server
        else Locked(file, WAREHOUSE_IS_MISSED),
        "power": Stopped(server),
    }
    try:
        yield Place(folder, log, warehouse, outages)
    finally:
        for url in (log, warehouse) if on_server else (log,):
            server.drop_database(url)


def _fill(connection: sa.Connection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[int, ...]]) -> None:
    declared = ", ".join(f"{name} {kind} not null" for name, kind in columns.items())
    connection.exec_driver_sql(f"CREATE TABLE {table} ({declared})")
    known = sa.table(table, *map(sa.column, columns))
    connection.execute(sa.insert(known), [dict(zip(columns, row, strict=True)) for row in rows])
