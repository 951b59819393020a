"""What the page says first of a group that has stopped: what was raised, and the author's own line."""

from __future__ import annotations

import pytest

from airflow_logio.run_report.causes import LONGEST_SAID, brief

AT = "pipeline 'sales', operator 'hourly', port 'in', event 212 of ingest.out"
OWN = '\n  File "/srv/run/hourly/2/code/pipelines/sales_operators.py", line 41, in hourly_sales\n    row["department"]'
LIBRARY = '\n  File "/usr/lib/python3.11/site-packages/pandas/core/frame.py", line 4102, in __getitem__\n    raise'
COMPILED = (
    '\n  File "pyarrow/table.pxi", line 5614, in pyarrow.lib.Table.rename_columns'
    '\n  File "pandas/_libs/lib.pyx", line 92, in pandas._libs.lib.map_infer'
)
WORKER = """Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
  File "/tmp/spark-1/userFiles/code/pipelines/sales_operators.py", line 41, in hourly_sales
    return 1 / 0
ZeroDivisionError: division by zero
"""
SPENT = (
    "group 'hourly' was recovered 2 times within 600 s and failed again; it is parked. Recoveries:\n"
    "  incarnation 2: killed\n  incarnation 3: killed\nlast cause: "
)
LINE = "pipelines/sales_operators.py:41, in hourly_sales"
RAISED = ("ZeroDivisionError: division by zero", LINE)
CASES = {
    f"OperatorFailed: {AT}: KeyError: 'department'{OWN}": ("KeyError: 'department'", LINE),
    f"OperatorFailed: {AT}, Input Set '2017-03-05T10: x': KeyError: 'a: b'{OWN}": ("KeyError: 'a: b'", LINE),
    f'OperatorFailed: {AT}, Input Set "it\'s: one": Unlucky: no{OWN}': ("Unlucky: no", LINE),
    f"FailedAtOnce: it failed at event 1 on port h.in, twice: {AT}: ValueError: x{OWN}": ("ValueError: x", LINE),
    f"OperatorFailed: {AT}: KeyError: 'department'{OWN}{LIBRARY}": ("KeyError: 'department'", LINE),
    f"OperatorFailed: {AT}: ArrowInvalid: 3 columns{OWN}{COMPILED}": ("ArrowInvalid: 3 columns", LINE),
    f"OperatorFailed: {AT}: KeyError: 'department'{LIBRARY}": ("KeyError: 'department'", ""),
    f"OperatorFailed: {AT}: ValueError: two\nlines of it{OWN}": ("ValueError: two", LINE),
    f"{SPENT}OperatorFailed: {AT}: KeyError: 1{OWN}": ("KeyError: 1 (it was recovered too often)", LINE),
    f"{SPENT}the driver's process 7 on vm has ended": (
        "the driver's process 7 on vm has ended (it was recovered too often)",
        "",
    ),
    "OperatorFailed: source 'ingest': OSError: gone"
    '\n  File "/opt/airflow/dags/pipelines/reader.py", line 3, in read\n    open(path)': (
        "OperatorFailed: source 'ingest': OSError: gone",
        "pipelines/reader.py:3, in read",
    ),
    f"OperatorFailed: {AT}: PythonException: An exception was thrown from the Python worker:\n{WORKER}{LIBRARY}": RAISED,
    f"OperatorFailed: {AT}: PythonException: \n  An exception was thrown from the Python worker. Please\n{WORKER}": RAISED,
    f"OperatorFailed: {AT}: Py4JJavaError: Error.\n: org.apache.spark.api.python.PythonException: {WORKER}\n\tat x": RAISED,
    f"OperatorFailed: {AT}: ValueError: \n\n  of the second line\nand more{OWN}": (
        "ValueError: of the second line",
        LINE,
    ),
    f"OperatorFailed: {AT}: KeyError: 1{OWN.replace('/srv', '/opt/python3.11')}": ("KeyError: 1", LINE),
    "OperatorFailed: KeyError: 1"
    '\n  File "/opt/python3.11/dags/sales.py", line 3, in read'
    '\n  File "/usr/lib/python3.11/json/decoder.py", line 1, in f': (
        "OperatorFailed: KeyError: 1",
        "dags/sales.py:3, in read",
    ),
    "ExternalUnavailable: no answer.": ("ExternalUnavailable: no answer.", ""),
    "": ("", ""),
}


@pytest.mark.parametrize("error", CASES)
def test_the_cause_stands_alone_with_the_authors_line(error: str) -> None:
    assert tuple(brief(error)) == CASES[error]


def test_a_long_message_is_cut_and_keeps_its_line() -> None:
    found = brief(f"OperatorFailed: {AT}: ValueError: {'x' * 10_000}{OWN}")
    assert len(found.said) <= LONGEST_SAID + 3 and found.place == LINE
