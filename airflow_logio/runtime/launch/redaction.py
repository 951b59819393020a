"""What a driver prints, without its secrets: those that it was given, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from airflow_logio.runtime.payloads.roots import secrets_of

LEAST_LENGTH = 5
"""Letters of a shorter secret stand in many words. In a URL, or behind its name, it is hidden all the same."""
HIDDEN = "***"
_SECRET = r"(?:password|passwd|pwd|secret|token|credential|api_?key|access_?key|account_?key|private_?key|keytab)"
_NAMED = re.compile(rf"(?i)\b([\w.\-]*{_SECRET}[\w.\-]*[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&)}}\]]+)")
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^/\s]*@")
_NAME = re.compile(_SECRET, re.IGNORECASE)


class Redaction:
    """`urls` of databases may hold passwords, the `root` of a payload store, too; variables of `environment` are secrets if
    their names sound like it."""

    def __init__(
        self, urls: Iterable[str], root: str | None = None, environment: Mapping[str, Any] | None = None
    ) -> None:
        found = {secret for url in urls for secret in _secrets(url)}
        found.update(secrets_of(root or ""))
        environment = environment or {}
        found |= {str(value) for name, value in environment.items() if _NAME.search(name)}
        found |= {quote(secret, safe="") for secret in found}
        # The longest first: one may be a part of another.
        self._known = sorted((one for one in found if len(one) >= LEAST_LENGTH), key=len, reverse=True)

    def of(self, text: str) -> str:
        """Whole lines, with *** for each secret."""
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}@", text))


def _secrets(url: str) -> list[str]:
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    named = [value for name, value in parse_qsl(parts.query) if _NAME.search(name)]
    return [one for one in (password, unquote(password), *named) if one]
