"""What a process that stands by has done before it is needed."""

from __future__ import annotations

import subprocess
import sys

SUMS = """
import sys
from airflow_logio.driver import incarnation, process
process.use_once()
before = set(sys.modules)
import pyarrow as pa
from airflow_logio.dataflow.functions.ready_made import Sums
sums = Sums(by=["k"], of=["v"])
table = sums.finish(sums(None, pa.table({"k": ["a", "a"], "v": [1, 2]})))
assert table.to_pylist() == [{"k": "a", "v": 3}], table
late = sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("pandas", "pyarrow", "numpy"))
assert not late, late
"""


def test_its_first_sums_import_nothing_further() -> None:
    """The import of pandas alone, which Arrow does then, took as long as the rest of a takeover."""
    subprocess.run([sys.executable, "-c", SUMS], check=True, timeout=300)
