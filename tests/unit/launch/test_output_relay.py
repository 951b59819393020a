"""What a relay says of the parts that drivers send: each line once, in order, with its driver."""

from __future__ import annotations

from airflow_logio.launch.driver_log import OutputRelay, beginning
from airflow_logio.store.port.unfenced_port import OutputPart


def part(group: str, incarnation: int, number: int, text: str) -> OutputPart:
    return OutputPart(group, incarnation, number, 0, "", float(number), text)


def test_each_line_is_said_once_with_its_driver() -> None:
    said: list[str] = []
    relay = OutputRelay(["g", "g.2"], {}, said.append)
    first, second = part("g", 1, 1, "one\ntwo\n"), part("g", 1, 2, "three")
    relay.relay([first, part("h", 1, 1, "of another group\n")])
    relay.relay([first, second, part("g.2", 1, 1, "a replica\n")])
    relay.relay([first, second])
    assert said == ["[g #1] one", "[g #1] two", "[g #1] three", "[g.2 #1] a replica"]
    assert relay.relayed == {"g": [1, 2], "g.2": [1, 1]}


def test_another_relay_resumes_where_the_last_one_was() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {"g": [1, 2]}, said.append)
    relay.relay([part("g", 1, 1, "old"), part("g", 1, 2, "old"), part("g", 1, 3, "new"), part("g", 2, 1, "next")])
    assert said == ["[g #1] new", "[g #2] next"]


def test_what_is_missing_is_said() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {"g": [1, 2]}, said.append)
    relay.relay([part("g", 1, 5, "five"), part("g", 2, 3, "three")])
    notice = "... lines left out: `logio logs` has more of them"
    assert said == [f"[g #1] {notice}", "[g #1] five", f"[g #2] {notice}", "[g #2] three"]


def test_it_begins_with_the_driver_that_was_there() -> None:
    assert beginning({"g": 3, "h": 1}, {"h": [1, 7]}) == {"g": (3, 0), "h": [1, 7]}
    said: list[str] = []
    relay = OutputRelay(["g"], beginning({"g": 3}, {}), said.append)
    relay.relay([part("g", 2, 9, "of the driver before"), part("g", 3, 1, "its own")])
    assert said == ["[g #3] its own"]


def test_the_rest_of_a_dead_driver_may_come_after_its_successor() -> None:
    said: list[str] = []
    relay = OutputRelay(["g"], {}, said.append)
    relay.relay([part("g", 1, 1, "one"), part("g", 2, 1, "successor")])
    for _ in range(2):
        relay.relay([part("g", 1, 1, "one"), part("g", 1, 2, "why it died"), part("g", 2, 1, "successor")])
    assert said == ["[g #1] one", "[g #2] successor", "[g #1] why it died"]
    assert relay.relayed == {"g": [2, 1]}
