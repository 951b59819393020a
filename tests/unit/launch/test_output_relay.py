"""What a relay says of the parts that drivers send: each line once, in order, with its driver and its own level."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from airflow_logio.launch.driver_log import MOST_PREFIX, DriverLines, OutputRelay, beginning
from airflow_logio.store.port.unfenced_port import OutputPart


def into(said: list[str]) -> Callable[[int, str], None]:
    return lambda _level, line: said.append(line)


def part(group: str, incarnation: int, number: int, text: str) -> OutputPart:
    return OutputPart(group, incarnation, number, 0, "", float(number), text)


def test_each_line_is_said_once_with_its_driver() -> None:
    said: list[str] = []
    relay = OutputRelay(["g", "g.2"], {}, into(said))
    first, second = part("g", 1, 1, "one\ntwo\n"), part("g", 1, 2, "three")
    relay.relay([first, part("h", 1, 1, "of another group\n")])
    relay.relay([first, second, part("g.2", 1, 1, "a replica\n")])
    relay.relay([first, second])
    assert said == ["[g #1] one", "[g #1] two", "[g #1] three", "[g.2 #1] a replica"]
    assert relay.relayed == {"g": [1, 2], "g.2": [1, 1]}


def test_another_relay_resumes_where_the_last_one_was() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {"g": [1, 2]}, into(said))
    relay.relay([part("g", 1, 1, "old"), part("g", 1, 2, "old"), part("g", 1, 3, "new"), part("g", 2, 1, "next")])
    assert said == ["[g #1] new", "[g #2] next"]


def test_what_is_missing_is_said() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {"g": [1, 2]}, into(said))
    relay.relay([part("g", 1, 5, "five"), part("g", 2, 3, "three")])
    notice = "... lines left out: `logio logs` has more of them"
    assert said == [f"[g #1] {notice}", "[g #1] five", f"[g #2] {notice}", "[g #2] three"]


def test_it_begins_with_the_driver_that_was_there() -> None:
    assert beginning({"g": 3, "h": 1}, {"h": [1, 7]}) == {"g": (3, 0), "h": [1, 7]}
    said: list[str] = []
    relay = OutputRelay(["g"], beginning({"g": 3}, {}), into(said))
    relay.relay([part("g", 2, 9, "of the driver before"), part("g", 3, 1, "its own")])
    assert said == ["[g #3] its own"]


def test_the_rest_of_a_dead_driver_may_come_after_its_successor() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {}, into(said))
    relay.relay([part("g", 1, 1, "one"), part("g", 2, 1, "successor")])
    for _ in range(2):
        relay.relay([part("g", 1, 1, "one"), part("g", 1, 2, "why it died"), part("g", 2, 1, "successor")])
    assert said == ["[g #1] one", "[g #2] successor", "[g #1] why it died"]
    assert relay.relayed == {"g": [2, 1]}


INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR
PRINTED = [
    (
        INFO,
        "2026-11-29 10:31:07,123 INFO MainThread airflow_logio.driver.epoch: epoch 3 begins",
        "10:31:07 epoch 3 begins",
    ),
    (
        WARNING,
        "2026-11-29 10:31:08,001 WARNING Thread-7 (run) sales.prices: no price",
        "10:31:08 sales.prices: no price",
    ),
    (INFO, "printed by the author", None),
    (INFO, "2026-11-29 10:31:08,002 SUCCESS MainThread a/b: x: y", "10:31:08 a/b: x: y"),
    (ERROR, '{"ts":"2026-11-29T10:31:08Z","level":"ERROR","msg":"Lost","logger":"TaskSetManager"}', None),
    (INFO, "a: print with a colon", None),
    (
        ERROR,
        "2026-11-29 10:31:09,001 ERROR MainThread airflow_logio.driver.incarnation: group g failed: KeyError",
        "10:31:09 group g failed: KeyError",
    ),
    (ERROR, '  File "sales_operators.py", line 12, in hourly_sales', None),
    (ERROR, "Traceback (most recent call last):", None),
    (ERROR, '  File "epoch.py", line 80, in run', None),
    (ERROR, "KeyError: 'department'", None),
    (ERROR, "", None),
    (ERROR, "The above exception was the direct cause of the following exception:", None),
    (INFO, "Errors are over", None),
    (WARNING, "26/11/29 10:31:10 WARN TaskSetManager: Lost task 0.0", "10:31:10 TaskSetManager: Lost task 0.0"),
    (WARNING, "org.apache.spark.SparkException: Job aborted", None),
    (WARNING, "\tat org.apache.spark.Main", None),
    (WARNING, "Caused by: java.io.IOException: no room", None),
    (INFO, "26/11/29 10:31:11 INFO SparkContext: Running", "10:31:11 SparkContext: Running"),
    (INFO, "KeyError: said, and not raised", None),
    (ERROR, "Traceback (most recent call last):", None),
    (ERROR, "SystemExit: 3", None),
    (INFO, "the next line", None),
    (ERROR, "Traceback (most recent call last):", None),
    (ERROR, "py4j.protocol.Py4JJavaError: An error occurred while calling o12.collect.", None),
    (ERROR, ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed", None),
    (ERROR, "\tat org.apache.spark.api.python.BasePythonRunner", None),
    (ERROR, "", None),
    (ERROR, "Driver stacktrace:", None),
    (ERROR, "\tat org.apache.spark.scheduler.DAGScheduler", None),
    (INFO, ": said", None),
]


def test_a_line_has_the_level_that_it_was_logged_with_and_a_traceback_that_of_its_error() -> None:
    lines = DriverLines("g", 2)
    for level, line, text in PRINTED:
        assert lines.of(line) == (level, f"[g #2] {line if text is None else text}")


@pytest.mark.parametrize("group", ["g", "hourly_sales", "a_group_with_a_very_long_name_indeed.12"])
@pytest.mark.parametrize("incarnation", [1, 12, 12_345])
def test_little_stands_before_what_a_driver_says(group: str, incarnation: int) -> None:
    lines = DriverLines(group, incarnation)
    said = "2026-11-29 10:31:07,123 INFO a-thread-with-a-long-name airflow_logio.driver.committer: committed"
    prefix, _, rest = lines.of(said)[1].partition("committed")
    assert rest == "" and len(prefix) <= MOST_PREFIX
    assert prefix.endswith("10:31:07 ") and f" #{incarnation}] " in prefix
    assert group[-3:] in prefix, "the number of a replica stays"
