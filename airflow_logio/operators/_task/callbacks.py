"""Callbacks and notifiers of the tasks that look after a run: what they get, and that each occurrence is told (ADR-102)."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

from airflow_logio.errors import LogioError, LogUnavailable

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.supervision.notices import Notice, NoticeKind, Seen

log = logging.getLogger(__name__)

Callback = Callable[[Mapping[str, Any]], Any]
"""Called with the task's context, which holds a `Notice` as a dict under ``notice``. A notifier is a callback, too."""
Callbacks = Callback | Sequence[Callback] | None
"""As authors give them."""


def parameter(kind: NoticeKind) -> str:
    """The parameter of callbacks for this kind."""
    return f"on_{kind}_callback"


def as_callbacks(name: str, given: Callbacks) -> list[Callback]:
    """Accepts one, several or none, as Airflow does. Raises `ValueError` for what cannot be called."""
    found = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    if wrong := [one for one in found if not callable(one)]:
        raise ValueError(f"{name}: {wrong[0]!r} cannot be called; give a function of the context, or a notifier")
    return found


def call_back(callbacks: Sequence[Callback], context: Mapping[str, Any], notice: Notice) -> None:
    """Call the callbacks. If one raises, the error is logged and has no other effect."""
    from airflow_logio.supervision.notices import NoticeKind

    told = notice.as_dict()
    del told["mark"]
    entries: dict[str, Any] = {"notice": {**told, "key": notice.key}}
    if notice.kind is NoticeKind.RECOVERY:
        entries["recovery"] = dict(notice.figures)
    for callback in callbacks:
        try:
            # A notifier renders its templates into itself: the next notice needs them as they were.
            once = copy.copy(callback) if isinstance(callback, BaseNotifier) else callback
            once({**context, **entries})
        except (Exception, SystemExit):
            log.exception("%s %s failed", parameter(notice.kind), getattr(callback, "__name__", callback))


class Teller:
    """Tells one task's callbacks what occurs in a run, each occurrence once while the log remembers.

    What was told is noted in the log, with the run, after each notice. A task that dies in between tells that one again.

    :param task: names the task in the log (`task_key`), the same for all its attempts.
    :param seen: what was told, if that is known; by default it is read when it is first needed.
    """

    def __init__(
        self,
        callbacks: Mapping[NoticeKind, Sequence[Callback]],
        context: Mapping[str, Any],
        store: LogStore,
        run: Run,
        task: str,
        seen: Seen | None = None,
    ) -> None:
        self._callbacks = {kind: found for kind, found in callbacks.items() if found}
        self._context = context
        self._store = store
        self._run = run
        self._task = task
        self._seen: Seen | None = {} if seen is None and not self._callbacks else seen

    @property
    def kinds(self) -> list[str]:
        """What has callbacks."""
        return [str(kind) for kind in self._callbacks]

    @property
    def seen(self) -> Seen:
        """What was told. Waits for the log if that must be read."""
        if self._seen is None:
            self._seen = self._store.patience.call("reading what was told", self._noted)
        return self._seen

    def tell(self, notice: Notice) -> None:
        from airflow_logio.supervision.notices import remembered

        if notice.kind not in self._callbacks:
            return
        seen = self.seen
        log.info("Telling of %s, group %s: %s", notice.kind, notice.group, notice.why)
        call_back(self._callbacks[notice.kind], self._context, notice)
        self._seen = remembered(seen, notice)
        self._note(self._seen)

    def look(self, *, is_last: bool = False) -> None:
        """Tell what the log says and was not told. Waits for the log."""
        if not self._callbacks:
            return
        untold = partial(self._untold, self.seen, is_last)
        for notice in self._store.patience.call("looking for what to tell", untold):
            self.tell(notice)

    def _untold(self, seen: Seen, is_last: bool) -> list[Notice]:
        from airflow_logio.supervision.notices import notices

        store, run_id = self._store, self._run.run_id
        return [
            notice
            for sight in store.sight([self._run.uid])
            for notice in notices(
                sight,
                store.figures([run_id])[run_id],
                seen,
                kinds=self.kinds,
                now=time.time(),
                all_requests=partial(store.scalings, run_id),
                is_last=is_last,
            )
        ]

    def _noted(self) -> Seen:
        """What an earlier attempt of the task has told."""
        try:
            kept = self._store.told_by(self._run.run_id, self._task)
        except LogUnavailable:
            raise
        except LogioError as error:
            log.warning("What was told before is not known, and is told again: %s: %s", type(error).__name__, error)
            return {}
        return kept if isinstance(kept, dict) and all(isinstance(one, dict) for one in kept.values()) else {}

    def _note(self, seen: Seen) -> None:
        """Does not wait for the log: the next group to die would wait with it."""
        try:
            self._store.note_told(self._run.run_id, self._task, seen)
        except LogioError as error:
            log.warning("A retry of this task will tell this again: %s: %s", type(error).__name__, error)
