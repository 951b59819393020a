"""Secrets: taken out of what a driver prints, and refused in properties, which a cluster manager shows on its pages.

They are those that a driver was given, and what looks like one.
The patterns take linear time: they run while the driver works, and nothing else of its Python runs meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import sqlalchemy as sa

from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.payload_roots import secrets_of

LEAST_LENGTH = 5
"""Letters of a shorter secret stand in many words. In a URL, or behind its name, it is hidden all the same."""
HIDDEN = "***"
ORDINARY = frozenset(
    {"admin", "airflow", "changeme", "default", "false", "guest", "localhost", "logio", "password", "postgres"}
    | {"secret", "spark", "token", "user", "warehouse"}
)
"""Values that stand in many lines where they are no secret."""

_WORD = (
    r"(?i:pass(?:word|wd|phrase)|(?<=_)pass|secret|token|credential|keytab"
    r"|(?:api|access|account|private|fernet|encryption)[._\-]?key)s?(?![a-z])"
)
_NAME = re.compile(_WORD)
_PLAIN = r"[\w.\-]{0,64}"
_VALUE = r"(?P<value>\"[^\"\n]{0,4096}\"|'[^'\n]{0,4096}'|\S{1,4096})"
_ASSIGNED = re.compile(
    rf"(?<![\w.\-])(?P<name>{_PLAIN}?{_WORD}{_PLAIN}[\"']?(?:[ \t]{{0,8}}[=:][ \t]{{0,8}}|,(?=\S))){_VALUE}"
)
_OPTION = re.compile(rf"(?<![\w.\-])(?P<name>--{_PLAIN}?{_WORD}{_PLAIN}[ \t]{{1,8}}){_VALUE}")
_NO_SECRET = re.compile(r"[\"']?(?:[+\-]?[\d.,_]+%?|none|null|true|false)[\"',;)\]}]{0,4}", re.IGNORECASE)
_IN_URL = re.compile(r"(://[^/\s:@]{0,256}:)[^/\s@]{1,256}@")
_BEARER = re.compile(r"(?i:\b(bearer|basic)) +[\w.~+/=\-]{8,4096}")

OF_DRIVERS = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")
"""How properties begin that are variables of drivers. Executors (``spark.executorEnv.``) have no other way to a secret of
their own, such as a key of a store: theirs are refused only where they hold one of ours."""
_INSTEAD = (
    "the manager shows it to all who may look. Leave it out there, and put it into the file or the Secret that tells drivers "
    "where the log is (docs/how-to/run-on-a-cluster.md): a URL under `connections`, a variable that `Pipeline(environment=)` "
    "names under `environment`"
)


def known_secrets(
    urls: Iterable[str], root: str | None = None, environment: Mapping[str, Any] | None = None
) -> frozenset[str]:
    """The secrets in these, as they may be written. `urls` of databases may hold passwords, the `root` of a payload store,
    too; variables of `environment` are secrets if their names sound like it.

    Words that stand in many texts are left out. Never raises: what cannot be read as a URL holds nothing that is known.
    """
    found = {secret for url in (*urls, root or "") for secret in _secrets(url)}
    found.update(secrets_of(root or ""))
    found |= {
        str(value) for name, value in (environment or {}).items() if _NAME.search(name) and _is_secret(str(value))
    }
    found |= {quote(secret, safe="") for secret in found}
    return frozenset(one for one in found if len(one) >= LEAST_LENGTH and one.lower() not in ORDINARY)


def has_password(text: str) -> bool:
    """Whether there is a URL with a password in it."""
    return _IN_URL.search(text) is not None


class Redaction:
    """Knows the `known_secrets` of its arguments."""

    def __init__(
        self, urls: Iterable[str], root: str | None = None, environment: Mapping[str, Any] | None = None
    ) -> None:
        known = known_secrets(urls, root, environment)
        # The longest first: one may be a part of another.
        alternatives = "|".join(re.escape(one) for one in sorted(known, key=len, reverse=True))
        self._known = re.compile(alternatives) if known else None

    def of(self, text: str) -> str:
        """Whole lines, with *** for each secret."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        return _ASSIGNED.sub(_hidden, _OPTION.sub(_hidden, text))


def _hidden(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    if _NO_SECRET.fullmatch(value):
        return found[0]
    quoted = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    return f"{name}{quoted}{HIDDEN}{quoted}"


def _is_secret(value: str) -> bool:
    """A variable may sound like a secret, and hold a switch, a number or the path of a file."""
    return not (_NO_SECRET.fullmatch(value) or value.startswith(("/", "~", "airflow.")))


def _secrets(url: str) -> list[str]:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return []
    password = str(parsed.password or "")
    named = [value for name, value in parse_qsl(url.partition("?")[2]) if _NAME.search(name)]
    return [one for one in (password, unquote(password), *named) if one]


# --- what a cluster manager shows -------------------------------------------------------------------------------------


def check_no_secrets(
    conf: Mapping[str, str],
    secrets: Collection[str],
    *,
    variables: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    files: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Refuse what is submitted with a driver if it holds a secret: one of `secrets` (`known_secrets`), a URL with a password,
    or, as a variable of the driver, what is called like one.

    `conf` are properties, `variables` the driver's environment, `settings` other arguments by name; `files`: what files of
    this machine say, by ``property in FILE`` or ``variable in FILE``. No message repeats a value. Raises
    `ConfigurationError`.
    """
    given = {"property": conf, "variable": variables or {}, "setting": settings or {}, **(files or {})}
    for kind, values in given.items():
        for name, value in sorted(values.items()):
            found = _secret_in(value, secrets)
            own = name if kind.startswith("variable") else _variable_of(name)
            if found is None and _NAME.search(own) and _is_secret(value):
                found = "what is called like a secret"
            if found is not None:
                raise ConfigurationError(f"{kind} {name} of a driver on a cluster holds {found}: {_INSTEAD}")


def _variable_of(name: str) -> str:
    """The variable of a driver that a property is; empty: it is none."""
    return next((name.removeprefix(prefix) for prefix in OF_DRIVERS if name.startswith(prefix)), "")


def _secret_in(value: str, secrets: Collection[str]) -> str | None:
    if has_password(value):
        return "a URL with a password"
    if any(secret in value for secret in secrets):
        return "a secret of the log, of a connection or of the payload store"
    return None
