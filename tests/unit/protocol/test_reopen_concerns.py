"""A retry voids the epoch of each operator that could otherwise end without what is put back (`context.reopen`).

Graphs, groups, ends and retries are random. An operator *may close* if all that comes before it in other groups has ended,
and it has not: its driver then asks whether anything is set aside, and acts on the answer. So a retry of anything before it
must void the epoch of its group, and take back the end of each of its inputs on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from airflow_logio.protocol.context import Context, Reopening, decode_context, encode_state, reopen
from airflow_logio.protocol.values import Port

MOST_OPERATORS = 8


@dataclass
class Graph:
    """Operators ``0`` to ``n`` in topological order, with the states that the log has."""

    senders: list[list[int]]
    """Operator → senders of its inputs ``0``, ``1``, ...: each has one output port."""
    group: list[int]
    contexts: list[Context | None]
    """None for an operator that has committed nothing."""
    before: list[set[int]] = field(default_factory=list)
    """Operator → itself, and all whose events can reach it."""

    def __post_init__(self) -> None:
        for operator, senders in enumerate(self.senders):
            self.before.append({operator}.union(*(self.before[sender] for sender in senders)))

    def ports(self) -> dict[Port, Port]:
        return {
            Port(str(operator), str(port)): Port(str(sender), "out")
            for operator, senders in enumerate(self.senders)
            for port, sender in enumerate(senders)
        }

    def has_ended(self, operator: int) -> bool:
        context = self.contexts[operator]
        return context is not None and context.finished

    def may_close(self, operator: int) -> bool:
        """Its group, which has not committed its end, may be about to: it has received all ends from other groups."""
        others = (name for name in self.before[operator] if self.group[name] != self.group[operator])
        return not self.has_ended(operator) and all(map(self.has_ended, others))

    def retry(self, retried: Mapping[str, Iterable[str]]) -> Reopening:
        states = {str(name): encode_state(one, {}) for name, one in enumerate(self.contexts) if one is not None}
        return reopen(states, self.ports(), retried)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """With any prefix of ends committed: of an operator that has ended, all inputs have. Who has not may know of some."""
    many = draw(st.integers(1, MOST_OPERATORS))
    senders = [draw(st.lists(st.integers(0, n - 1), max_size=3)) if n else [] for n in range(many)]
    group = [draw(st.integers(0, 3)) for _ in range(many)]
    contexts: list[Context | None] = []
    for of_one in senders:
        over = [port for port, sender in enumerate(of_one) if (one := contexts[sender]) is not None and one.finished]
        ends = len(over) == len(of_one) and draw(st.booleans())
        if not ends and draw(st.booleans()):
            contexts.append(None)
            continue
        known = over if ends else draw(st.lists(st.sampled_from(over), unique=True)) if over else []
        aside = draw(st.lists(st.sampled_from("AB"), unique=True))
        context = Context(ended={str(port) for port in known}, aside=aside, finished=ends)
        if ends:
            context.allocate_event("out")
        contexts.append(context)
    return Graph(senders, group, contexts)


@given(graphs(), st.data())
def test_a_retry_concerns_the_group_of_all_that_may_close_behind_it(graph: Graph, data: st.DataObject) -> None:
    for _ in range(2):  # what a retry leaves is a state as any other
        aside = [name for name, one in enumerate(graph.contexts) if one is not None and one.aside]
        if not aside:
            return
        chosen = data.draw(st.lists(st.sampled_from(aside), min_size=1, unique=True))
        retried = {str(name): list(one.aside) for name in chosen if (one := graph.contexts[name]) is not None}
        closing = [name for name in range(len(graph.senders)) if graph.may_close(name)]
        reopening = graph.retry(retried)
        concerned = {graph.group[int(name)] for name in reopening.concerned}
        for writer in closing:
            if graph.before[writer].intersection(chosen):
                event("a writer is concerned")
                assert graph.group[writer] in concerned, (writer, chosen)
        for name, state in reopening.states.items():
            graph.contexts[int(name)] = decode_context(name, state)
        _all_behind_it_are_open(graph, chosen)


def _all_behind_it_are_open(graph: Graph, chosen: list[int]) -> None:
    """No operator behind it has ended, or knows an end of what is put back: it closes only after that has come."""
    for operator, context in enumerate(graph.contexts):
        if context is None or not graph.before[operator].intersection(chosen):
            continue
        assert not context.finished
        ended = {graph.senders[operator][int(port)] for port in context.ended}
        assert not any(graph.before[sender].intersection(chosen) for sender in ended)
