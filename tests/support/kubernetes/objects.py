"""All objects of the small API server with their history, so that they can be watched, and with what is collected as garbage.

An object that is kept is never changed in place: each write keeps another one. Versions are those of the whole server.
"""

from __future__ import annotations

import copy
import random
import string
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.support.kubernetes import problems
from tests.support.kubernetes.patches import Place, leaves, merged, value_at, without
from tests.support.kubernetes.problems import Object, Problem
from tests.support.kubernetes.resources import BY_PLURAL, NAMESPACES, PODS, Resource, check, check_change, complete
from tests.support.kubernetes.selectors import Selector

Key = tuple[str, str, str]
"""Plural, namespace (empty if it has none), name."""
FIRST = 1_000
"""The version that this server begins with: older ones are too old to be watched from."""
NAMESPACES_THERE = ("default", "kube-system", "kube-public", "kube-node-lease")
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True)
class Event:
    version: int
    key: Key
    before: Object | None
    after: Object | None
    """As it was last, if it is deleted; with the version of this event."""
    deleted: bool = False


@dataclass(frozen=True)
class Deletion:
    """`DeleteOptions`, of a body or of the query."""

    grace: int | None = None
    propagation: str = "Background"
    uid: str | None = None
    version: str | None = None


class Objects:
    """Each method is atomic, and raises `Problem` if Kubernetes would refuse."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = FIRST
        self._oldest = FIRST
        self._objects: dict[Key, Object] = {}
        self._history: list[Event] = []
        self._applied: dict[tuple[str, str], set[Place]] = {}
        """Uid and manager → what that manager has applied."""
        self._breaks = 0
        for name in NAMESPACES_THERE:
            self.create(NAMESPACES, "", {"metadata": {"name": name}})

    # --- reads --------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._objects.get((resource.plural, namespace, name))
            if found is None:
                raise problems.not_found(resource.name, name)
            return found

    def list(self, resource: Resource, namespace: str, holds: Selector) -> tuple[list[Object], int]:
        """By namespace and name, and the version at which that was so; of all namespaces if `namespace` is empty."""
        with self.changed:
            keys = sorted(key for key in self._objects if key[0] == resource.plural and namespace in {"", key[1]})
            return [self._objects[key] for key in keys if holds(self._objects[key])], self.version

    def watch(self, resource: Resource, namespace: str, holds: Selector, since: int | None) -> Iterator[Object | None]:
        """What happens after version `since`, or what there is and then what happens; None while nothing does.

        It ends when the server breaks its watches. A version that is too old makes one event of type ERROR.
        """
        with self.changed:
            breaks = self._breaks
            there, now = self.list(resource, namespace, holds)
            if since is not None and since < self._oldest:
                yield {"type": "ERROR", "object": problems.expired(since, self._oldest).status}
                return
        if since is None:
            yield from ({"type": "ADDED", "object": one} for one in there)
            since = now
        while True:
            with self.changed:
                if self.version <= since and breaks == self._breaks:
                    self.changed.wait(0.2)
                if breaks != self._breaks:
                    return
                come = [event for event in self._history if event.version > since]
                since = max(since, self.version)
            for event in come:
                if (
                    event.key[0] == resource.plural
                    and namespace in {"", event.key[1]}
                    and (seen := _seen(event, holds))
                ):
                    yield seen
            yield None

    # --- writes -------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, given: Object) -> Object:
        with self.changed:
            one = copy.deepcopy(given)
            metadata = one.setdefault("metadata", {})
            if not metadata.get("name") and metadata.get("generateName"):
                metadata["name"] = metadata["generateName"] + "".join(random.choices(_RANDOM, k=5))
            _check_place(resource, namespace, one)
            if namespace and ("namespaces", "", namespace) not in self._objects:
                raise problems.not_found("namespaces", namespace)
            check(resource, one)
            key = (resource.plural, namespace, metadata["name"])
            if key in self._objects:
                raise problems.already_exists(resource.name, metadata["name"])
            complete(resource, one)
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=_now(), generation=1)
            for of_server in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
                metadata.pop(of_server, None)
            created = self._keep(key, None, one)
            self._collect()
            return created

    def replace(self, resource: Resource, namespace: str, name: str, given: Object, *, status: bool = False) -> Object:
        with self.changed:
            there = self.get(resource, namespace, name)["metadata"]["uid"]
            wanted = (given.get("metadata") or {}).get("uid") or there
            if wanted != there:
                why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {there}"
                raise problems.conflict(resource.name, name, why)
            return self.change(resource, namespace, name, lambda _before: copy.deepcopy(given), status=status)

    def change(
        self, resource: Resource, namespace: str, name: str, how: Callable[[Object], Object], *, status: bool = False
    ) -> Object:
        """By a function of the object as it is. Only its status, or all but its status."""
        with self.changed:
            before = self.get(resource, namespace, name)
            after = how(before)
            after = {**after, "metadata": dict(after.get("metadata") or {})}  # nothing of what is kept is changed
            old, new = before["metadata"], after["metadata"]
            if new.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
                raise problems.conflict(resource.name, name, _MODIFIED)
            if new.get("uid", old["uid"]) != old["uid"]:
                why = f'Invalid value: "{new["uid"]}": field is immutable'
                raise problems.invalid(resource.kind, name, "metadata.uid", why)
            if new.get("name", name) != name:
                raise problems.bad_request(
                    f"the name of the object ({new['name']}) does not match the name on the URL ({name})"
                )
            if status:
                after = {**before, "status": after.get("status") or {}}
            else:
                for field in _OF_SERVER:
                    new.pop(field, None)
                    if field in old:
                        new[field] = old[field]
                if resource.statuses:
                    after["status"] = before.get("status") or {}
                check(resource, after)
                check_change(resource, before, after)
            if _same(before, after):
                return before
            kept = self._keep((resource.plural, namespace, name), before, after)
            self._collect()
            return kept

    def apply(
        self, resource: Resource, namespace: str, name: str, given: Object, manager: str, force: bool
    ) -> tuple[Object, bool]:
        """Server-side apply, and whether it has created the object."""
        with self.changed:
            given = merged({}, given)
            said = {place for place in leaves(given) if place[0] not in {"apiVersion", "kind"} and place not in _NAMES}
            key = (resource.plural, namespace, name)
            created = key not in self._objects
            if created:
                given["metadata"] = {**given.get("metadata", {}), "name": name}
                kept = self.create(resource, namespace, given)
            else:
                before = self._objects[key]
                self._refuse_conflicts(resource, before, given, said, manager, force)
                after = before
                for place in self._given_up(before["metadata"]["uid"], manager, said):
                    after = without(after, place)
                kept = self.change(resource, namespace, name, lambda _before: merged(after, given))
            self._applied[kept["metadata"]["uid"], manager] = said
            return kept, created

    def bind(self, namespace: str, name: str, node: str) -> None:
        """Assign a pod to a node, as the scheduler does."""
        with self.changed:
            before = self.get(PODS, namespace, name)
            if before["spec"].get("nodeName") or "deletionTimestamp" in before["metadata"]:
                why = f"pod {name} is already assigned to node, or is being deleted"
                raise problems.conflict("pods/binding", name, why)
            scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": _now()}
            others = [one for one in before["status"].get("conditions") or [] if one["type"] != "PodScheduled"]
            after = {
                **before,
                "spec": {**before["spec"], "nodeName": node},
                "status": {**before["status"], "conditions": [*others, scheduled]},
            }
            self._keep((PODS.plural, namespace, name), before, after)

    def delete(self, resource: Resource, namespace: str, name: str, how: Deletion) -> tuple[Object, bool]:
        """The object, and whether it has gone: a pod on a node stays until its node says that it has ended."""
        with self.changed:
            before = self.get(resource, namespace, name)
            metadata = before["metadata"]
            demanded = (
                ("UID", how.uid, metadata["uid"]),
                ("ResourceVersion", how.version, metadata["resourceVersion"]),
            )
            for what, wanted, found in demanded:
                if wanted is not None and wanted != found:
                    why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
                    raise problems.conflict(resource.name, name, why)
            result = self._delete(before, how)
            self._collect()
            return result

    # --- of tests -----------------------------------------------------------------------------------------------------

    def break_watches(self) -> None:
        with self.changed:
            self._breaks += 1
            self.changed.notify_all()

    def forget(self) -> None:
        """History, as a compaction does: watches from before now get 410."""
        with self.changed:
            self.version += 1
            self._oldest = self.version
            self._history.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _keep(self, key: Key, before: Object | None, after: Object, *, deleted: bool = False) -> Object:
        self.version += 1
        resource = BY_PLURAL[key[0]]
        metadata = {**after["metadata"], "name": key[2], "resourceVersion": str(self.version)}
        if key[1]:
            metadata["namespace"] = key[1]
        if before is not None and "generation" in metadata and after.get("spec") != before.get("spec"):
            metadata["generation"] += 1
        kept = {**after, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        if deleted:
            del self._objects[key]
        else:
            self._objects[key] = kept
        self._history.append(Event(self.version, key, before, kept, deleted))
        self.changed.notify_all()
        ends = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
        if ends and not deleted and not metadata.get("finalizers"):
            self._keep(key, kept, kept, deleted=True)  # its last finalizer has gone
        return kept

    def _delete(self, before: Object, how: Deletion) -> tuple[Object, bool]:
        resource, metadata = _resource(before), before["metadata"]
        key = (resource.plural, metadata.get("namespace", ""), metadata["name"])
        finalizers = list(metadata.get("finalizers") or [])
        if how.propagation == "Foreground" and FOREGROUND not in finalizers:
            finalizers.append(FOREGROUND)
        if how.propagation == "Orphan":
            self._orphan(metadata["uid"])
        grace = self._grace(resource, before, how)
        if resource is not PODS and not finalizers:
            return self._keep(key, before, before, deleted=True), True
        changed = {**metadata, "deletionGracePeriodSeconds": grace}
        changed.setdefault("deletionTimestamp", _now())
        if finalizers:
            changed["finalizers"] = finalizers
        if changed == metadata:
            return before, False
        kept = self._keep(key, before, {**before, "metadata": changed})
        return kept, key not in self._objects

    def _grace(self, resource: Resource, one: Object, how: Deletion) -> int:
        """Seconds; no more than what an earlier deletion gave."""
        if resource is not PODS:
            return 0
        if not one["spec"].get("nodeName") or one["status"].get("phase") in {"Succeeded", "Failed"}:
            return 0
        grace = one["spec"]["terminationGracePeriodSeconds"] if how.grace is None else how.grace
        return int(min(grace, one["metadata"].get("deletionGracePeriodSeconds", grace)))

    def _orphan(self, uid: str) -> None:
        for key, one in list(self._objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                left = [owner for owner in owners if owner["uid"] != uid]
                self._keep(key, one, {**one, "metadata": {**one["metadata"], "ownerReferences": left}})

    def _collect(self) -> None:
        """Delete what has no owner left, what a deleted namespace had, and what waited for that."""
        while any(self._collect_one(key) for key in list(self._objects)):
            pass

    def _collect_one(self, key: Key) -> bool:
        """Whether that has changed anything."""
        one = self._objects.get(key)
        if one is None:
            return False
        metadata, version = one["metadata"], self.version
        owners = metadata.get("ownerReferences") or []
        uids = {there["metadata"]["uid"]: there for there in self._objects.values()} if owners else {}
        waits_for = [uids[owner["uid"]] for owner in owners if owner["uid"] in uids]
        unowned = bool(owners) and not waits_for
        foreground = bool(waits_for) and all(
            FOREGROUND in (owner["metadata"].get("finalizers") or []) for owner in waits_for
        )
        homeless = bool(key[1]) and ("namespaces", "", key[1]) not in self._objects
        if (unowned or foreground or homeless) and "deletionTimestamp" not in metadata:
            self._delete(one, Deletion(propagation="Foreground" if foreground else "Background"))
        elif FOREGROUND in (metadata.get("finalizers") or []) and not self._blocked(metadata["uid"]):
            left = [finalizer for finalizer in metadata["finalizers"] if finalizer != FOREGROUND]
            self._keep(key, one, {**one, "metadata": {**metadata, "finalizers": left}})
        return self.version != version

    def _blocked(self, uid: str) -> bool:
        return any(
            owner["uid"] == uid and owner.get("blockOwnerDeletion")
            for one in self._objects.values()
            for owner in one["metadata"].get("ownerReferences") or []
        )

    def _given_up(self, uid: str, manager: str, said: set[Place]) -> set[Place]:
        """What this manager has applied, says no more, and no other manager has applied."""
        others = [places for (of, owner), places in self._applied.items() if of == uid and owner != manager]
        return self._applied.get((uid, manager), set()) - said - set().union(*others)

    def _refuse_conflicts(
        self, resource: Resource, before: Object, given: Object, said: set[Place], manager: str, force: bool
    ) -> None:
        uid = before["metadata"]["uid"]
        for (of, owner), places in list(self._applied.items()):
            if of != uid or owner == manager:
                continue
            against = {place for place in said & places if value_at(before, place) != value_at(given, place)}
            if against and not force:
                field = "." + ".".join(min(against))
                why = f'Apply failed with 1 conflict: conflict with "{owner}": {field}'
                raise Problem(409, "Conflict", why, {"name": before["metadata"]["name"], "kind": resource.name})
            self._applied[of, owner] = places - against


_RANDOM = "".join(sorted(set(string.ascii_lowercase + string.digits) - set("aeiou013")))
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_OF_SERVER = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
)
_NAMES = {("metadata", "name"), ("metadata", "namespace")}


def _seen(event: Event, holds: Selector) -> Object | None:
    """As a watch with a selector sees it: what begins to match is added, what no longer does is deleted."""
    was = event.before is not None and holds(event.before)
    now = not event.deleted and event.after is not None and holds(event.after)
    if not was and not now:
        return None
    return {"type": "MODIFIED" if was and now else "ADDED" if now else "DELETED", "object": event.after}


def _check_place(resource: Resource, namespace: str, one: Object) -> None:
    given = one["metadata"].get("namespace")
    if given and given != namespace:
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise problems.bad_request(message)
    if (
        one.get("kind", resource.kind) != resource.kind
        or one.get("apiVersion", resource.api_version) != resource.api_version
    ):
        raise problems.bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")


def _resource(one: Object) -> Resource:
    return next(resource for resource in BY_PLURAL.values() if resource.kind == one["kind"])


def _same(before: Object, after: Object) -> bool:
    return {**before, "metadata": {**before["metadata"], "generation": 0}} == {
        **after,
        "apiVersion": before["apiVersion"],
        "kind": before["kind"],
        "metadata": {"name": before["metadata"]["name"], **_placed(before), **after["metadata"], "generation": 0},
    }


def _placed(one: Object) -> Object:
    namespace = one["metadata"].get("namespace")
    return {"namespace": namespace} if namespace else {}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
