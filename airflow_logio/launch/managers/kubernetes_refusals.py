"""What the API server of Kubernetes means that does not do what it was asked, and what is to be done about it.

Quotas and limits refuse with the same code as missing rights. One that is used up may have room later; one that is smaller
than the pod alone never has.
"""

from __future__ import annotations

import re

from airflow_logio.errors import ConfigurationError, LogioError, ManagerUnavailable, NeverFits

_FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[\w/]+)"')
_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>[^ ]+), used: [^ ]+, limited: (?P<limited>[^ ]+)"
)
"""As the admission plugin ResourceQuota writes it: the resources that do not fit, as ``name=quantity,name=quantity``."""
_NOT_NOW = re.compile(r"exceeded quota|status unknown for quota")
"""The second: what is used of a new quota has not been counted yet."""
_LIMIT_RANGE = re.compile(r"(?:minimum|maximum) \S+ usage per \w+ is|max limit to request ratio per")
"""As the admission plugin LimitRanger writes it, with the figures."""


class Refusal(Exception):
    """The API server has refused a request: nothing was changed by it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def too_large(self) -> str | None:
        """Why no pod like this one will ever be taken, in words; None: it may be."""
        if self.code != 403:
            return None
        if (found := _QUOTA.search(str(self))) is not None:
            asked, limits = _quantities(found["requested"]), _quantities(found["limited"])
            over = [name for name in asked if name in limits and _is_more(asked[name], limits[name])]
            figures = ", ".join(f"{asked[name]} of {name}, and the quota is {limits[name]}" for name in over)
            return f"alone it needs more than quota {found['quota']!r} has in all ({figures})" if over else None
        if _LIMIT_RANGE.search(str(self)):
            return "a LimitRange of the namespace allows no such pod"
        return None

    @property
    def error(self) -> type[LogioError]:
        """What a refused submission is: not for now (a quota that is used up, credentials that are renewed meanwhile), too
        large for ever, or to be put right otherwise."""
        if self.too_large is not None:
            return NeverFits
        is_for_now = self.code == 401 or (self.code == 403 and _NOT_NOW.search(str(self)) is not None)
        return ManagerUnavailable if is_for_now else ConfigurationError


class NoAnswer(Exception):
    """A request was lost, or its answer: whether it was carried out is not known."""


def explained(error: Exception) -> str:
    """What a refusal or a lost request means, and what is to be done."""
    if not isinstance(error, Refusal):
        return f"does not answer: {error}"
    if error.too_large is not None:
        return (
            f"refuses the driver's pod: {error.too_large}. Change its memory (spark.driver.memory, "
            "spark.driver.memoryOverhead) or its cores (spark.driver.cores, spark.kubernetes.driver.request.cores), or have "
            f"what limits it changed; then retry the group. The API server's words: {error}"
        )
    if error.code == 403 and (missing := _FORBIDDEN.search(str(error))):
        return (
            f"refuses: {error}. Its Role lacks the verb {missing['verb']!r} of {missing['resource']!r}: see "
            "docker/k8s/rbac.yaml for all that are needed"
        )
    if error.code == 401:
        return f"does not accept the credentials of this process ({error}): renew the kubeconfig, or its token"
    return f"refuses: {error}"


def _quantities(text: str) -> dict[str, str]:
    """Of ``pods=1,requests.memory=4Gi``."""
    return {name: value for name, _, value in (part.partition("=") for part in text.split(",")) if value}


def _is_more(one: str, other: str) -> bool:
    """Whether a quantity is more than another one; False if one of them cannot be read."""
    from kubernetes.utils.quantity import parse_quantity

    try:
        return bool(parse_quantity(one) > parse_quantity(other))
    except ValueError:
        return False
