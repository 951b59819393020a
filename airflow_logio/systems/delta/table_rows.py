"""What a Delta table keeps for its writers: markers, its owner, and who owns a day of it (`protocol.external_rules`).

A table keeps, by names (*app ids*), one whole number each, which a commit changes together with data: in its log, and in
checkpoints of that. So runs are numbers here: those of owners are ordered as the runs were started. Numbers decide; names in
messages come from the metadata of commits, as far back as there is any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from airflow_logio.dataflow.writers.action_writers import Marker
from airflow_logio.protocol.external_rules import NO_RUN, MarkerRow, Owner, owner_by
from airflow_logio.protocol.scope_rules import DayRun, ScopeRow

ABOUT = "logio"
"""Key of what the metadata of a commit says of its run."""
_TIE_BITS = 10
_SHARED = 2**62
"""Owners from here on are no runs: pipelines own parts of the table. No clock reaches it (in the year 2112)."""
OWNER, APPENDING, SINCE = "logio-owner", "logio-appending", "logio-scopes-since"


def owner_number(owner: Owner) -> int:
    """An owner as a number: the microsecond at which the run was started, then a digest of its uid."""
    if owner == NO_RUN:
        return 0
    if owner.is_shared:
        return _SHARED + digest(owner.run_uid, 61)
    return (round(owner.started_at * 1e6) << _TIE_BITS) + digest(owner.run_uid, _TIE_BITS)


def digest(text: str, bits: int = 63) -> int:
    """Never 0, which says that there is nothing."""
    found = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    return int(found % (2**bits - 1)) + 1


@dataclass(frozen=True, slots=True)
class TableRows:
    """Those of a table at one version. `number` gives what it keeps under a name, `history` the metadata of its commits."""

    number: Callable[[str], int | None]
    history: Callable[[], list[Mapping[str, Any]]]

    def marker(self, marker: Marker) -> MarkerRow:
        number, token = self.number(f"logio/{marker.key}"), self.number(f"logio-token/{marker.key}")
        return MarkerRow(number or 0, token or 0)

    def owner(self, mine: Owner, claimed: Owner) -> Owner | None:
        """The owner of the table; None if no run has begun to write to it."""
        return self._owner(OWNER, mine, claimed)

    def appending(self, mine: Owner) -> Owner | None:
        """The last one of the runs that append."""
        return self._owner(APPENDING, mine, mine)

    def given_up(self, mine: Owner) -> Owner | None:
        """The run in whose place this one was given up."""
        return self._owner(_given_up(mine.run_uid), mine, mine)

    def scope(self, key: str, mine: DayRun) -> ScopeRow | None:
        """Who owns a day; None if no run has claimed it since days are owned in the table."""
        line, ordinal, by, since, live, live_ordinal, live_write = (self.number(one) or 0 for one in _scope_names(key))
        if not line or since != (self.number(SINCE) or 0):
            return None
        pipeline, log_uid = self._line(line, mine)
        names = (pipeline, log_uid, ordinal, self._uid(by, mine))
        return ScopeRow(*names, live_ordinal, self._uid(live, mine), live_write) if live else ScopeRow(*names)

    def _owner(self, name: str, mine: Owner, claimed: Owner) -> Owner | None:
        number = self.number(name)
        if number is None:
            return None
        for known in (NO_RUN, mine, claimed):
            if number == owner_number(known):
                return known
        if number >= _SHARED:
            return owner_by("another partition")
        found = (str(about["run"]) for about in self._abouts() if about.get("owner") == number)
        return Owner(next(found, f"that the log of the table does not name ({number:x})"), (number >> _TIE_BITS) / 1e6)

    def _uid(self, number: int, mine: DayRun) -> str:
        if number == digest(mine.run_uid):
            return mine.run_uid
        found = (str(about["run"]) for about in self._abouts() if digest(str(about["run"])) == number)
        return next(found, f"that the log of the table does not name ({number:x})")

    def _line(self, number: int, mine: DayRun) -> tuple[str, str]:
        if number == _line_number(mine):
            return mine.line
        for about in self._abouts():
            line = (str(about.get("pipeline")), str(about.get("log")))
            if digest("\0".join(line)) == number:
                return line
        return "(not named in the log of the table)", ""

    def _abouts(self) -> list[Mapping[str, Any]]:
        return [one[ABOUT] for one in self.history() if isinstance(one.get(ABOUT), Mapping) and "run" in one[ABOUT]]


def _given_up(run_uid: str) -> str:
    return f"logio-given-up/{run_uid}"


def _scope_names(key: str) -> tuple[str, ...]:
    what = ("line", "claimed", "claimed-by", "since", "live", "live-ordinal", "live-write")
    return tuple(f"logio-scope-{one}/{key}" for one in what)


def _line_number(run: DayRun) -> int:
    return digest("\0".join(run.line))


# --- what a commit changes --------------------------------------------------------------------------------------------


def marked(marker: Marker, number: int) -> dict[str, int]:
    """The marker of a writer, advanced."""
    return {f"logio/{marker.key}": number, f"logio-token/{marker.key}": marker.token}


def owned(owner: Owner) -> dict[str, int]:
    return {OWNER: owner_number(owner)}


def appended(run: Owner) -> dict[str, int]:
    return {APPENDING: owner_number(run)}


def gave_up(run_uid: str, fresh: Owner) -> dict[str, int]:
    return {_given_up(run_uid): owner_number(fresh)}


def claimed(key: str, run: DayRun, since: int, before: ScopeRow | None) -> dict[str, int]:
    """A run claims a day. Without a row from before, no run has its rows there."""
    names = _scope_names(key)
    claim = dict(zip(names, (_line_number(run), run.ordinal, digest(run.run_uid), since), strict=False))
    return claim if before is not None else claim | dict.fromkeys(names[4:], 0)


def closed(key: str, run: DayRun, write: int) -> dict[str, int]:
    return dict(zip(_scope_names(key)[4:], (digest(run.run_uid), run.ordinal, write), strict=True))
