"""The notifier that docs/how-to/recover.md shows: what its messages say of each kind of notice."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from airflow_logio.operators._task.callbacks import call_back
from airflow_logio.supervision.notices import NoticeKind, notices
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.bundle.told_by_mail import mail
from tests.support.two_groups import TwoGroups


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[SmtpNotifier]:
    """Notifiers as they are when they send: rendered."""
    found: list[SmtpNotifier] = []
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, _context: found.append(self))
    return found


def test_each_message_says_what_has_occurred(sent: list[SmtpNotifier]) -> None:
    flow = TwoGroups(MemoryLogStore())
    flow.recover("totals")
    flow.set_aside("1", "2", error="ValueError: <no>")
    flow.drivers["totals"].session.park("KeyError: <department>")
    kinds = [NoticeKind.BUDGET, NoticeKind.QUARANTINE, NoticeKind.PARKED]
    [sight], run_id = flow.store.sight([flow.run.uid]), flow.run.run_id
    requests: Any = partial(flow.store.scalings, run_id)
    figures = flow.store.figures([run_id])[run_id]
    for notice in notices(sight, figures, {}, kinds=kinds, now=0.0, all_requests=requests):
        call_back([mail], {}, notice)
    subjects = [f"sales, group totals: {kind}" for kind in ("budget", "quarantine", "parked")]
    assert [one.subject for one in sent] == subjects
    budget, quarantine, parked = (str(one.html_content) for one in sent)
    assert "1 of 2 recoveries within 600 s are spent; last cause: test" in budget and "<li>left: 1</li>" in budget
    assert "2 Input Sets are set aside" in quarantine and "<li>input_sets: 2</li>" in quarantine
    assert "<p>KeyError: &lt;department&gt;</p>" in parked and "<li>recoveries: 1</li>" in parked
    assert all(f"`logio status {flow.run.uid[:8]}`" in text for text in (budget, quarantine, parked))
    assert mail.subject == "{{ notice.pipeline }}, group {{ notice.group }}: {{ notice.kind }}", "as it was"
