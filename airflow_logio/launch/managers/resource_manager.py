"""YARN's ResourceManager by its REST: where it is, which applications it knows, and a request to kill one.

Of several (high availability) the active one answers, and the others send to it. An answer that is not one of YARN's, in part
or as a whole, says nothing: above all not that there is no application.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import REQUEST_SECONDS
from airflow_logio.launch.spark_settings import RESOURCE_MANAGER_PROPERTY

CONF_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables with the folder of Hadoop's settings, in the order in which Spark looks there."""
SITE = "yarn-site.xml"
_RM = "yarn.resourcemanager."
_PORTS = {"http": ("webapp.address", 8088), "https": ("webapp.https.address", 8090)}
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_Answer = TypeVar("_Answer")
_CONTAINER = re.compile(r"container_(?:e\d+_)?\d+_\d+_(?P<attempt>\d+)_\d+")
_PATH = "/ws/v1/cluster"
_MOST_BYTES = 64 << 20
_NO_TICKETS = (
    "{} asks for a ticket of Kerberos (401): install requests-kerberos where drivers are launched and watched, and let that "
    "process have a ticket (kinit, or `airflow kerberos`)"
)
_FORBIDDEN = "{} refuses this: the user that it takes this process for may not see or end the application"
_NO_SUCH = b"NotFoundException"
"""In what it says with 404 of an application that it does not know. A proxy, and another server, do not say it."""
_FILTERS, _ASKS_WHO = "yarn.webapp.filter-entity-list-by-user", "yarn.acl.enable"
_ASSIGNED, _LAUNCHED = "Scheduler has assigned a container for AM", "AM container is launched"
"""What the diagnostics of an accepted application say: they are shown to everyone."""
_AT_ONCE = 40
"""Tags in one request: their names have about 50 characters, and an address of 4,000 is accepted everywhere."""


class Application(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An application, as far as its drivers are concerned. What this process may not see is empty."""

    id: str
    user: str
    queue: str
    state: Literal["NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"]
    final_status: str = ""
    diagnostics: str = ""
    application_tags: str = ""
    """With commas between them."""
    started_time: int = 0
    """When it was accepted, in milliseconds since the epoch."""
    launch_time: int = 1
    """When the container of its first attempt was started; 0: not yet. An earlier Hadoop does not say."""
    am_container_logs: str = ""
    """Address of the output of its master's container: of the latest attempt, and empty before that has a container."""

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(self.application_tags.split(","))

    @property
    def attempt(self) -> int:
        """Which attempt has the container; 0: none has one, or that is not shown."""
        found = _CONTAINER.search(self.am_container_logs)
        return int(found["attempt"]) if found else 0

    @property
    def has_container(self) -> bool:
        """Whether its master has one: also of one that this process may not see."""
        return bool(self.attempt) or _ASSIGNED in self.diagnostics or self.is_launched

    @property
    def is_launched(self) -> bool:
        """Whether the container of its master was started: also of one that this process may not see."""
        return self.state == "RUNNING" or bool(self.attempt and self.launch_time) or _LAUNCHED in self.diagnostics


class _Apps(msgspec.Struct):
    app: list[Application] | None = None


class _Listed(msgspec.Struct):
    apps: _Apps | Literal[""] | None
    """Not an object: there are none."""


class _One(msgspec.Struct):
    app: Application


class _Attempt(msgspec.Struct):
    id: int


class _OfOne(msgspec.Struct, rename="camel"):
    app_attempt: list[_Attempt] | None = None


class _Attempts(msgspec.Struct, rename="camel"):
    app_attempts: _OfOne | Literal[""] | None


class _Itself(msgspec.Struct, rename="camel"):
    ha_state: str = "it does not say its state"


class _Info(msgspec.Struct, rename="camel"):
    cluster_info: _Itself


class _Setting(msgspec.Struct):
    value: str


class _Property(msgspec.Struct):
    property: _Setting


# --- where it is ------------------------------------------------------------------------------------------------------


def addresses_of(conf: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Where the ResourceManagers' pages are, with commas between several: by a property of the launch, else by yarn-site.xml
    in the folder of Hadoop's settings that `environment` names. Raises `ConfigurationError`."""
    if named := conf.get(RESOURCE_MANAGER_PROPERTY):
        return ",".join(_checked(one.strip()) for one in named.split(","))
    for variable in CONF_FOLDERS:
        site = Path(environment.get(variable) or "/nowhere") / SITE
        if site.is_file():
            return ",".join(_of_site(site))
    raise ConfigurationError(
        f"there is no {SITE} where {' or '.join(CONF_FOLDERS)} points to, so that neither Spark nor this process finds the "
        "ResourceManager: set one of them for the process that launches drivers, to the folder with Hadoop's settings"
    )


def _checked(address: str) -> str:
    found = urlsplit(address)
    if found.scheme not in _PORTS or not found.hostname or found.username or found.password or found.query:
        raise ConfigurationError(
            f"{RESOURCE_MANAGER_PROPERTY} has {re.sub('//.*@', '//…@', address)!r}: give http://host:port or "
            "https://host:port, without a user (the log notes it, and shows it), or several with commas"
        )
    return address.rstrip("/")


def _of_site(site: Path) -> list[str]:
    try:
        found = {
            one.findtext("name", "").strip(): one.findtext("value", "") for one in xml.parse(site).iter("property")
        }
    except (OSError, xml.ParseError) as error:
        raise ConfigurationError(f"{site} cannot be read: {error}") from error

    def value(name: str, default: str = "") -> str:
        said = found.get(name, default).strip()
        return _VARIABLE.sub(lambda match: found.get(match[1], match[0]).strip(), said)

    scheme = "https" if value("yarn.http.policy").upper() == "HTTPS_ONLY" else "http"
    named, port = _PORTS[scheme]
    ids = [""]
    if value(f"{_RM}ha.enabled").lower() == "true":
        ids = [f".{one.strip()}" for one in value(f"{_RM}ha.rm-ids").split(",") if one.strip()]
    addresses = []
    for one in ids:
        host = value(f"{_RM}hostname{one}")
        address = value(f"{_RM}{named}{one}") or (f"{host}:{port}" if host else "")
        if not address or address.startswith("0.0.0.0:"):
            raise ConfigurationError(
                f"{site} does not say where the ResourceManager is: it has neither {_RM}hostname{one} nor {_RM}{named}{one}. "
                f"Set one of them, or {RESOURCE_MANAGER_PROPERTY} for the launch"
            )
        addresses.append(f"{scheme}://{address}")
    return addresses


# --- what it is asked -------------------------------------------------------------------------------------------------


class ResourceManager:
    """That of one cluster. Every method ends within `REQUEST_SECONDS` for each request, and raises `ManagerUnavailable`. For
    use by several threads."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses.split(",")
        self._active = self.addresses[0]
        """Which has answered last: asked first."""

    def applications(self, tags: Iterable[str], *states: str) -> Iterator[Application]:
        """Those with one of the tags, in one of the states, or in any; a request for each 40 tags."""
        wanted = sorted({tag.lower() for tag in tags})
        for start in range(0, len(wanted), _AT_ONCE):
            query = f"applicationTags={quote(','.join(wanted[start : start + _AT_ONCE]), safe=',')}"
            if states:
                query += f"&states={','.join(states)}"
            found = self._get(f"{_PATH}/apps?{query}", _Listed).apps
            yield from (found.app or []) if isinstance(found, _Apps) else []

    def named(self, names: Iterable[str]) -> list[Application]:
        """Those with one of these tags that this process may see (`hides_applications`). While a ResourceManager that was
        restarted reads what it has kept, it answers already and lists nothing: what is missing is believed of an active one
        only."""
        names = set(names)
        found = list(self.applications(names))
        if missing := names.difference(*(one.tags for one in found)):
            self.check()
            found += self.applications(missing)
        return found

    def hides_applications(self) -> bool:
        """Whether its lists leave out what the user for whom it takes this process may not see. By its own settings; one that
        does not show them (behind a gateway) is believed to have YARN's default, which hides nothing."""
        return all(self._has_set(name) for name in (_FILTERS, _ASKS_WHO))

    def check(self) -> None:
        """Whether it answers, and is the active one."""
        state = self._get(f"{_PATH}/info", _Info).cluster_info.ha_state
        if state != "ACTIVE":
            raise ManagerUnavailable(f"the ResourceManager {self._active} is not active ({state})")

    def application(self, application_id: str) -> Application | None:
        """None: it knows none of this id, or has forgotten it."""
        path = f"{_PATH}/apps/{quote(application_id)}"
        found = self._find(path, _One)
        if found is None:
            self.check()
            found = self._find(path, _One)
        if found is not None and found.app.id != application_id:
            raise ManagerUnavailable(f"{self._active} describes {found.app.id}, and was asked for {application_id}")
        return None if found is None else found.app

    def latest_attempt(self, application_id: str) -> int:
        """0: it knows of none."""
        found = self._find(f"{_PATH}/apps/{quote(application_id)}/appattempts", _Attempts)
        attempts = found.app_attempts if found is not None else None
        return max((one.id for one in attempts.app_attempt or []), default=0) if isinstance(attempts, _OfOne) else 0

    def kill(self, application_id: str) -> None:
        """Ask for its end; what does not exist any more, or has ended, is no error. Raises `KillRefused`."""
        try:
            self._ask("PUT", f"{_PATH}/apps/{quote(application_id)}/state", b'{"state":"KILLED"}')
        except _NotFound:
            return

    def _has_set(self, name: str) -> bool:
        until = time.monotonic() + REQUEST_SECONDS
        try:
            said = _answer("GET", f"{self._active}/conf?name={name}", None, until)
            return msgspec.json.decode(said, type=_Property).property.value.strip().lower() == "true"
        except (_NotFound, _NotServed, KillRefused, msgspec.DecodeError, RecursionError):
            return False
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ManagerUnavailable(f"the ResourceManager does not answer ({self._active}: {error})") from error

    def _get(self, path: str, kind: type[_Answer]) -> _Answer:
        """What there is of every ResourceManager."""
        found = self._find(path, kind)
        if found is None:
            raise ManagerUnavailable(f"{self._active} has no {path.partition('?')[0]}: is that a ResourceManager?")
        return found

    def _find(self, path: str, kind: type[_Answer]) -> _Answer | None:
        """None: it says that there is no such thing."""
        try:
            return msgspec.convert(self._ask("GET", path), kind, strict=False)
        except _NotFound:
            return None
        except KillRefused as refused:
            raise ManagerUnavailable(str(refused)) from None
        except msgspec.ValidationError as error:
            raise ManagerUnavailable(f"{self._active} answers in an unknown way: {error}") from error

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """What the active one answers. Raises `_NotFound` and `KillRefused`, too."""
        deadline = time.monotonic() + REQUEST_SECONDS
        first, said = self._active, []
        order = [first, *(one for one in self.addresses if one != first)]
        for number, address in enumerate(order):
            now = time.monotonic()
            until = now + (deadline - now) / (len(order) - number)  # one that is silent leaves time for the others
            try:
                answer = msgspec.json.decode(_answer(method, f"{address}{path}", body, until))
            except (msgspec.DecodeError, RecursionError):
                said.append(f"{address}: it answers, but is no active ResourceManager of YARN")
                continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                said.append(f"{address}: {str(error) or type(error).__name__}")
                continue
            self._active = address
            return answer
        raise ManagerUnavailable(f"the ResourceManager does not answer ({'; '.join(said)})")


class KillRefused(Exception):
    """The ResourceManager wants to know who asks, or this user may not do that."""


class _NotFound(Exception):
    """There is no such application."""


class _NotServed(OSError):
    """What answers has no such page, or shows another one."""


class _SameMethod(urllib.request.HTTPRedirectHandler):
    """A standby sends to the active one, whichever the method."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if _PATH not in urlsplit(newurl).path:
            raise _NotServed(f"it sends to {newurl.partition('?')[0]}, which is no ResourceManager: a page to log in?")
        return urllib.request.Request(newurl, req.data, dict(req.header_items()), method=req.get_method())


_opener = urllib.request.build_opener(_SameMethod)


def _answer(method: str, url: str, body: bytes | None, deadline: float) -> bytes:
    """Raises OSError, `http.client.HTTPException`, ValueError, `_NotFound` and `KillRefused`."""
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with _opener.open(request, timeout=_left(deadline)) as answer:
            return _read(answer, deadline)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                return _by_ticket(method, url, body, deadline)
            raise _of_status(error.code, error.reason, _read(error, deadline), url) from None


def _by_ticket(method: str, url: str, body: bytes | None, deadline: float) -> bytes:
    """With this process's ticket of Kerberos, as Airflow's Spark provider has it. Raises as `_answer`."""
    try:
        requests, kerberos = import_module("requests"), import_module("requests_kerberos")
    except ImportError:
        raise KillRefused(_NO_TICKETS.format(url.partition(_PATH)[0])) from None
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    auth = kerberos.HTTPKerberosAuth()
    answer = requests.request(method, url, data=body, headers=headers, auth=auth, timeout=_left(deadline))
    if answer.status_code >= 400:
        code = 403 if answer.status_code == 401 else answer.status_code
        raise _of_status(code, answer.reason, bytes(answer.content), url)
    return bytes(answer.content)


def _of_status(code: int, reason: str, said: bytes, url: str) -> Exception:
    """What a status of HTTP says: it knows no such application, this user may not, or there is no answer to be had."""
    if code == 404 and _NO_SUCH in said:
        return _NotFound()
    if code == 403:
        return KillRefused(_FORBIDDEN.format(url.partition(_PATH)[0]))
    kind = _NotServed if code < 500 else OSError
    return kind(f"{code} {reason}: {said[:300].decode(errors='replace')}")


def _read(answer: Any, deadline: float) -> bytes:
    """All of it; a server that sends slowly is given up."""
    parts: list[bytes] = []
    while part := answer.read1(1 << 16):
        parts.append(part)
        _left(deadline)
        if sum(map(len, parts)) > _MOST_BYTES:
            raise OSError("the answer has more than 64 MB")
    return b"".join(parts)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"no answer within {REQUEST_SECONDS:g} s")
    return left
