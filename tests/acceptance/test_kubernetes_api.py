"""What the tests' small API server answers is what Kubernetes answers: both are asked the same.

Where Kubernetes does something a moment later (its garbage collector), the answer is waited for.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.kubernetes import real
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.client import APPLY, STEPS, Api
from tests.support.kubernetes.problems import Object, Problem
from tests.support.waiting import eventually

BUILT = pytest.mark.skipif(real.why_not() is not None, reason=str(real.why_not()))
NETWORK_POLICIES = "/apis/networking.k8s.io/v1"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real.kubernetes(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server.url


@pytest.fixture(params=["small", pytest.param("real", marks=BUILT)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield request.getfixturevalue("kubernetes")
    else:
        yield request.getfixturevalue("small_server").url


@pytest.fixture
def api(url: str) -> Iterator[Api]:
    one = Api(url)
    yield one
    one.close()


@pytest.fixture
def space(api: Api) -> str:
    """The path of a namespace of the test's own."""
    name = f"space-{next(_numbers)}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}"


def config_map(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "data": {"key": "value"}}


def pod(name: str, **metadata: Any) -> Object:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "spark:4"}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def owned_by(owner: Object, **more: Any) -> list[Object]:
    return [
        {key: owner[key] for key in ("apiVersion", "kind")}
        | {key: owner["metadata"][key] for key in ("name", "uid")}
        | more
    ]


def refused(code: int, reason: str, ask: Callable[..., object], *arguments: Any, **more: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        ask(*arguments, **more)
    assert (caught.value.code, caught.value.reason) == (code, reason), caught.value.message
    return caught.value


def names(listed: Object) -> list[str]:
    return [one["metadata"]["name"] for one in listed["items"]]


def bound(api: Api, space: str, name: str) -> Object:
    """A new pod that is on a node."""
    made: Object = api.create(f"{space}/pods", pod(name))
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    api.create(f"{space}/pods/{name}/binding", {"metadata": {"name": name}, "target": target})
    return made


# --- the server -------------------------------------------------------------------------------------------------------


def test_it_says_what_it_is_and_what_it_has(api: Api) -> None:
    assert api.get("/version")["gitVersion"] == "v1.36.3"
    assert api.get("/readyz") == "ok"
    assert "v1" in api.get("/api")["versions"]
    assert "networking.k8s.io" in {group["name"] for group in api.get("/apis")["groups"]}
    wanted = {"namespaces", "pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"}
    assert wanted <= {one["name"] for one in api.get("/api/v1")["resources"]}
    assert "networkpolicies" in {one["name"] for one in api.get(NETWORK_POLICIES)["resources"]}
    refused(404, "", api.get, "/apis/nothing.example/v1/things")
    refused(404, "NotFound", api.get, "/api/v1/things")


# --- objects ----------------------------------------------------------------------------------------------------------


def test_an_object_is_created_once_read_and_deleted(api: Api, space: str) -> None:
    made = api.create(f"{space}/configmaps", config_map("one", labels={"a": "b"}))
    assert made["metadata"]["uid"] and made["metadata"]["namespace"] == space.rpartition("/")[2]
    assert (made["kind"], made["apiVersion"], made["data"]) == ("ConfigMap", "v1", {"key": "value"})
    again = refused(409, "AlreadyExists", api.create, f"{space}/configmaps", config_map("one"))
    assert again.message == 'configmaps "one" already exists'
    assert api.get(f"{space}/configmaps/one")["metadata"]["uid"] == made["metadata"]["uid"]
    api.delete(f"{space}/configmaps/one")
    for ask in (api.get, api.delete):
        gone = refused(404, "NotFound", ask, f"{space}/configmaps/one")
        assert (gone.message, gone.details["name"]) == ('configmaps "one" not found', "one")


def test_a_namespace_that_is_not_there_has_nothing_and_takes_nothing(api: Api) -> None:
    missing = refused(404, "NotFound", api.create, "/api/v1/namespaces/nowhere/pods", pod("one"))
    assert missing.message == 'namespaces "nowhere" not found'
    assert names(api.get("/api/v1/namespaces/nowhere/pods")) == []


@pytest.mark.parametrize(
    ("plural", "one"),
    {
        "a name with capitals": ("configmaps", config_map("One")),
        "no name": ("configmaps", {"metadata": {}}),
        "a name of 254 characters": ("pods", pod("a" * 254)),
        "a service with a dot in its name": (
            "services",
            {"metadata": {"name": "a.b"}, "spec": {"clusterIP": "None"}},
        ),
        "a service with a name of 64 characters": (
            "services",
            {"metadata": {"name": "a" * 64}, "spec": {"clusterIP": "None"}},
        ),
        "a label of 64 characters": ("pods", pod("one", labels={"a": "b" * 64})),
        "a label with a slash": ("pods", pod("one", labels={"a": "b/c"})),
        "a key with two slashes": ("pods", pod("one", annotations={"a/b/c": "d"})),
        "a pod without containers": ("pods", {"metadata": {"name": "one"}, "spec": {"containers": []}}),
        "a pod without an image": ("pods", {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main"}]}}),
        "an owner without a uid": (
            "configmaps",
            config_map("one", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]),
        ),
        "a key of a config map with a slash": ("configmaps", {"metadata": {"name": "one"}, "data": {"a/b": "c"}}),
        "a config map of more than a megabyte": (
            "configmaps",
            {"metadata": {"name": "one"}, "data": {"a": "b" * 1_048_577}},
        ),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_refused(api: Api, space: str, plural: str, one: Object) -> None:
    refused(422, "Invalid", api.create, f"{space}/{plural}", one)
    assert names(api.get(f"{space}/{plural}")) == []


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "A", "value": 5}]},
        {"args": ["--port", 5]},
        {"command": [True]},
        {"resources": {"requests": {"memory": "512MB"}}},
        {"resources": {"limits": {"cpu": "many"}}},
    ],
    ids=lambda container: next(iter(container)),
)
def test_what_has_another_type_is_refused(api: Api, space: str, container: Object) -> None:
    one = pod("one")
    one["spec"]["containers"][0].update(container)
    refused(400, "BadRequest", api.create, f"{space}/pods", one)


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_metadata_and_data_are_text(api: Api, space: str, field: str) -> None:
    refused(400, "BadRequest", api.create, f"{space}/configmaps", config_map("one", **{field: {"a": 5}}))
    refused(400, "BadRequest", api.create, f"{space}/configmaps", {"metadata": {"name": "one"}, "data": {"a": 5}})


@pytest.mark.parametrize(
    "spec",
    [
        {"restartPolicy": "never"},
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_a_pod_whose_spec_contradicts_itself_is_refused(api: Api, space: str, spec: Object) -> None:
    one = pod("one")
    one["spec"].update(spec)
    refused(422, "Invalid", api.create, f"{space}/pods", one)


def test_two_mounts_at_a_path_are_refused(api: Api, space: str) -> None:
    one = pod("one")
    one["spec"]["volumes"] = [{"name": "a", "emptyDir": {}}]
    one["spec"]["containers"][0]["volumeMounts"] = [{"name": "a", "mountPath": "/a"}] * 2
    refused(422, "Invalid", api.create, f"{space}/pods", one)


def test_a_mount_of_no_volume_is_refused(api: Api, space: str) -> None:
    one = pod("one")
    one["spec"]["containers"][0]["volumeMounts"] = [{"name": "nothing", "mountPath": "/etc/logio"}]
    assert "nothing" in refused(422, "Invalid", api.create, f"{space}/pods", one).message


def test_a_secret_holds_base64_and_takes_text(api: Api, space: str) -> None:
    api.create(f"{space}/secrets", {"metadata": {"name": "one"}, "stringData": {"password": "pässword"}})
    found = api.get(f"{space}/secrets/one")
    assert base64.b64decode(found["data"]["password"]).decode() == "pässword"
    assert (found["type"], "stringData" in found) == ("Opaque", False)
    refused(
        400, "BadRequest", api.create, f"{space}/secrets", {"metadata": {"name": "two"}, "data": {"a": "no base 64!"}}
    )


def test_a_name_can_be_generated(api: Api, space: str) -> None:
    made = [api.create(f"{space}/pods", pod("", generateName="one-"))["metadata"]["name"] for _ in range(3)]
    assert len(set(made)) == 3
    assert all(name.startswith("one-") and len(name) == 9 for name in made)


def test_a_new_pod_is_pending_and_has_the_usual_settings(api: Api, space: str) -> None:
    made = api.create(f"{space}/pods", pod("one"))
    assert made["status"]["phase"] == "Pending"
    assert (made["spec"]["terminationGracePeriodSeconds"], made["spec"]["dnsPolicy"]) == (30, "ClusterFirst")


def test_network_policies_and_claims_are_kept(api: Api, space: str) -> None:
    policies = f"{NETWORK_POLICIES}{space.removeprefix('/api/v1')}/networkpolicies"
    policy = {
        "metadata": {"name": "one", "labels": {"run": "1"}},
        "spec": {"podSelector": {"matchLabels": {"run": "1"}}},
    }
    assert api.create(policies, policy)["kind"] == "NetworkPolicy"
    assert names(api.get(policies, {"labelSelector": "run=1"})) == ["one"]
    claim = {
        "metadata": {"name": "one"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    assert api.create(f"{space}/persistentvolumeclaims", claim)["status"]["phase"] == "Pending"


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "found"),
    {
        "run=1": ["a", "b"],
        "run==1,role=driver": ["a"],
        "run!=1": ["c", "d"],
        "run in (1, 2),role notin (driver)": ["b", "c"],
        "role": ["a", "b"],
        "!role": ["c", "d"],
        "run": ["a", "b", "c"],
        "": ["a", "b", "c", "d"],
    }.items(),
)
def test_a_label_selector_finds_exactly_its_own(api: Api, space: str, labels: str, found: list[str]) -> None:
    given = {"a": {"run": "1", "role": "driver"}, "b": {"run": "1", "role": "executor"}, "c": {"run": "2"}, "d": {}}
    for name, own in given.items():
        api.create(f"{space}/pods", pod(name, labels=own))
    for version in ({}, {"resourceVersion": "0"}):
        ask = {"labelSelector": labels, **version}
        assert eventually(lambda ask=ask: names(api.get(f"{space}/pods", ask)) == found, what=labels)  # type: ignore[misc]


def test_fields_select_too_and_pages_have_a_limit(api: Api, space: str) -> None:
    for name in "abcde":
        api.create(f"{space}/pods", pod(name))
    assert names(api.get(f"{space}/pods", {"fieldSelector": "metadata.name=c"})) == ["c"]
    assert names(api.get(f"{space}/pods", {"fieldSelector": "status.phase!=Pending"})) == []
    first = api.get(f"{space}/pods", {"limit": 2})
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    rest = api.get(f"{space}/pods", {"limit": 9, "continue": first["metadata"]["continue"]})
    assert (names(rest), rest["metadata"].get("continue")) == (["c", "d", "e"], None)
    refused(400, "BadRequest", api.get, f"{space}/pods", {"labelSelector": "a b"})
    refused(400, "BadRequest", api.get, f"{space}/pods", {"fieldSelector": "spec.nothing=1"})


# --- changes ----------------------------------------------------------------------------------------------------------


def test_patches_merge_or_go_step_by_step(api: Api, space: str) -> None:
    api.create(f"{space}/configmaps", config_map("one", labels={"a": "b"}))
    changed = api.merge(
        f"{space}/configmaps/one", {"data": {"key": None, "other": "1"}, "metadata": {"labels": {"c": "d"}}}
    )
    assert (changed["data"], changed["metadata"]["labels"]) == ({"other": "1"}, {"a": "b", "c": "d"})
    steps = [
        {"op": "test", "path": "/data/other", "value": "1"},
        {"op": "add", "path": "/metadata/labels/x~1y", "value": "z"},
        {"op": "remove", "path": "/metadata/labels/a"},
    ]
    changed = api.ask("PATCH", f"{space}/configmaps/one", steps, STEPS)
    assert changed["metadata"]["labels"] == {"c": "d", "x/y": "z"}
    refused(422, "Invalid", api.ask, "PATCH", f"{space}/configmaps/one", [{"op": "remove", "path": "/data/no"}], STEPS)


def test_an_update_of_an_older_version_is_refused(api: Api, space: str) -> None:
    old = api.create(f"{space}/configmaps", config_map("one"))
    api.merge(f"{space}/configmaps/one", {"data": {"key": "new"}})
    refused(409, "Conflict", api.ask, "PUT", f"{space}/configmaps/one", old)
    version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"key": "newer"}}
    refused(409, "Conflict", api.merge, f"{space}/configmaps/one", version)
    refused(422, "Invalid", api.merge, f"{space}/configmaps/one", {"metadata": {"uid": "another"}})
    another = {"metadata": {"name": "one", "uid": "another"}}
    refused(409, "Conflict", api.ask, "PUT", f"{space}/configmaps/one", another)
    assert api.get(f"{space}/configmaps/one")["data"] == {"key": "new"}


def test_what_changes_nothing_is_no_new_version(api: Api, space: str) -> None:
    made = api.create(f"{space}/configmaps", config_map("one"))
    same = api.merge(f"{space}/configmaps/one", {"data": {"key": "value"}})
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_status_and_the_rest_are_written_separately(api: Api, space: str) -> None:
    api.create(f"{space}/pods", pod("one"))
    told = {"status": {"phase": "Running", "podIP": "10.1.2.3"}, "metadata": {"labels": {"from": "status"}}}
    api.merge(f"{space}/pods/one/status", told)
    api.merge(f"{space}/pods/one", {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}})
    found = api.get(f"{space}/pods/one")
    assert (found["status"]["phase"], found["status"]["podIP"]) == ("Running", "10.1.2.3")
    assert found["metadata"]["labels"]["a"] == "b"


def test_the_command_of_a_pod_cannot_change(api: Api, space: str) -> None:
    api.create(f"{space}/pods", pod("one"))
    other = {"spec": {"containers": [{"name": "main", "image": "spark:4", "command": ["other"]}]}}
    refused(422, "Invalid", api.merge, f"{space}/pods/one", other)


def test_apply_creates_changes_and_takes_back(api: Api, space: str) -> None:
    path = f"{space}/configmaps/one"
    said = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("one", labels={"a": "b"})}
    made = api.apply(path, said)
    changed = api.apply(path, {**said, "data": {"other": "1"}, "metadata": {"name": "one"}})
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert (changed["data"], changed["metadata"].get("labels")) == ({"other": "1"}, None)
    rival = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"other": "2"}}
    against = refused(409, "Conflict", api.apply, path, rival, "another", force=False)
    assert '"tests"' in against.message and ".data.other" in against.message
    assert api.apply(path, rival, "another", force=True)["data"] == {"other": "2"}
    refused(422, "Invalid", api.ask, "PATCH", path, rival, APPLY)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_deletion_may_demand_a_uid(api: Api, space: str) -> None:
    old = api.create(f"{space}/pods", pod("one"))
    api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 0})
    new = api.create(f"{space}/pods", pod("one"))
    demand = {"preconditions": {"uid": old["metadata"]["uid"]}}
    refused(409, "Conflict", api.delete, f"{space}/pods/one", demand)
    assert api.get(f"{space}/pods/one")["metadata"]["uid"] == new["metadata"]["uid"]
    api.delete(f"{space}/pods/one", {"preconditions": {"uid": new["metadata"]["uid"]}})
    refused(404, "NotFound", api.get, f"{space}/pods/one")


def test_a_pod_on_a_node_goes_when_its_node_says_so(api: Api, space: str) -> None:
    made = bound(api, space, "one")
    api.merge(f"{space}/pods/one/status", {"status": {"phase": "Running"}})
    answer = api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 7})
    assert (answer["kind"], answer["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 7)
    going = api.get(f"{space}/pods/one")
    assert going["metadata"]["deletionTimestamp"] and going["spec"]["nodeName"] == "node-1"
    refused(409, "AlreadyExists", api.create, f"{space}/pods", pod("one"))
    api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}})
    refused(404, "NotFound", api.get, f"{space}/pods/one")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_goes_at_once(api: Api, space: str, phase: str) -> None:
    bound(api, space, "one")
    api.merge(f"{space}/pods/one/status", {"status": {"phase": phase}})
    api.delete(f"{space}/pods/one")
    refused(404, "NotFound", api.get, f"{space}/pods/one")


def test_a_pod_is_bound_once(api: Api, space: str) -> None:
    bound(api, space, "one")
    scheduled = [one for one in api.get(f"{space}/pods/one")["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert [one["status"] for one in scheduled] == ["True"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-2"}
    again = {"metadata": {"name": "one"}, "target": target}
    refused(409, "Conflict", api.create, f"{space}/pods/one/binding", again)
    refused(404, "NotFound", api.create, f"{space}/pods/two/binding", {**again, "metadata": {"name": "two"}})


def test_a_finalizer_holds_what_is_deleted(api: Api, space: str) -> None:
    api.create(f"{space}/configmaps", config_map("one", finalizers=["example.com/held"]))
    api.delete(f"{space}/configmaps/one")
    assert api.get(f"{space}/configmaps/one")["metadata"]["deletionTimestamp"]
    api.merge(f"{space}/configmaps/one", {"metadata": {"finalizers": None}})
    refused(404, "NotFound", api.get, f"{space}/configmaps/one")


def test_a_selector_deletes_exactly_its_own(api: Api, space: str) -> None:
    for name, run in (("a", "1"), ("b", "1"), ("c", "2")):
        api.create(f"{space}/configmaps", config_map(name, labels={"run": run}))
    api.delete(f"{space}/configmaps", query={"labelSelector": "run=1"})
    assert names(api.get(f"{space}/configmaps")) == ["c"]


def test_what_a_deleted_object_owns_is_collected(api: Api, space: str) -> None:
    owner = api.create(f"{space}/pods", pod("owner"))
    other = api.create(f"{space}/pods", pod("other"))
    of_both = [*owned_by(owner), *owned_by(other)]
    api.create(f"{space}/configmaps", config_map("of-it", ownerReferences=owned_by(owner)))
    api.create(f"{space}/configmaps", config_map("of-both", ownerReferences=of_both))
    api.create(f"{space}/secrets", {"metadata": {"name": "of-it", "ownerReferences": owned_by(owner)}})
    between = api.create(f"{space}/pods", pod("of-it", ownerReferences=owned_by(owner)))
    api.create(f"{space}/configmaps", config_map("of-that", ownerReferences=owned_by(between)))
    api.delete(f"{space}/pods/owner")
    eventually(lambda: names(api.get(f"{space}/configmaps")) == ["of-both"], what="two of three are collected")
    eventually(lambda: names(api.get(f"{space}/pods")) == ["other"], what="the pod between is collected")
    eventually(lambda: names(api.get(f"{space}/secrets")) == [], what="the secret is collected")


def test_what_never_had_an_owner_that_is_there_is_collected(api: Api, space: str) -> None:
    ghost = {"apiVersion": "v1", "kind": "Pod", "name": "ghost", "uid": "11111111-2222-3333-4444-555555555555"}
    api.create(f"{space}/configmaps", config_map("one", ownerReferences=[ghost]))
    eventually(lambda: names(api.get(f"{space}/configmaps")) == [], what="it is collected")


def test_orphans_stay_and_foreground_waits(api: Api, space: str) -> None:
    owner = api.create(f"{space}/configmaps", config_map("owner"))
    api.create(f"{space}/configmaps", config_map("orphan", ownerReferences=owned_by(owner)))
    api.delete(f"{space}/configmaps/owner", {"propagationPolicy": "Orphan"})
    eventually(lambda: names(api.get(f"{space}/configmaps")) == ["orphan"], what="the owner has gone")
    assert not api.get(f"{space}/configmaps/orphan")["metadata"].get("ownerReferences")
    first = api.create(f"{space}/configmaps", config_map("first"))
    held = config_map("held", ownerReferences=owned_by(first, blockOwnerDeletion=True), finalizers=["example.com/held"])
    api.create(f"{space}/configmaps", held)
    api.delete(f"{space}/configmaps/first", {"propagationPolicy": "Foreground"})
    waits = lambda: "deletionTimestamp" in api.get(f"{space}/configmaps/held")["metadata"]  # noqa: E731
    eventually(waits, what="what it owns is deleted first")
    assert api.get(f"{space}/configmaps/first")["metadata"]["finalizers"] == ["foregroundDeletion"]
    api.merge(f"{space}/configmaps/held", {"metadata": {"finalizers": None}})
    eventually(lambda: names(api.get(f"{space}/configmaps")) == ["orphan"], what="both have gone")


# --- watches ----------------------------------------------------------------------------------------------------------


def test_a_watch_shows_each_change_since_a_version(api: Api, space: str) -> None:
    since = api.get(f"{space}/pods")["metadata"]["resourceVersion"]
    api.create(f"{space}/pods", pod("one", labels={"run": "1"}))
    api.create(f"{space}/pods", pod("two", labels={"run": "2"}))
    with api.watch(f"{space}/pods", {"resourceVersion": since, "labelSelector": "run=1"}) as events:
        assert _seen(next(events)) == ("ADDED", "one")
        api.merge(f"{space}/pods/one/status", {"status": {"phase": "Running"}})
        event = next(events)
        assert (_seen(event), event["object"]["status"]["phase"]) == (("MODIFIED", "one"), "Running")
        api.merge(f"{space}/pods/two", {"metadata": {"labels": {"run": "1"}}})
        assert _seen(next(events)) == ("ADDED", "two")
        api.merge(f"{space}/pods/two", {"metadata": {"labels": {"run": "2"}}})
        assert _seen(next(events)) == ("DELETED", "two")
        api.delete(f"{space}/pods/one")
        assert _seen(next(events)) == ("MODIFIED", "one"), "it is being deleted"
        assert _seen(next(events)) == ("DELETED", "one")


def test_a_watch_shows_how_a_pod_on_a_node_ends(api: Api, space: str) -> None:
    bound(api, space, "one")
    since = api.get(f"{space}/pods")["metadata"]["resourceVersion"]
    with api.watch(f"{space}/pods", {"resourceVersion": since}) as events:
        api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 5})
        told = next(events)
        assert (_seen(told), told["object"]["metadata"]["deletionGracePeriodSeconds"]) == (("MODIFIED", "one"), 5)
        api.delete(f"{space}/pods/one", {"gracePeriodSeconds": 0})
        told = next(events)
        assert (_seen(told), told["object"]["metadata"]["deletionGracePeriodSeconds"]) == (("MODIFIED", "one"), 0)
        assert _seen(next(events)) == ("DELETED", "one")


def test_a_watch_without_a_version_begins_with_what_there_is(api: Api, space: str) -> None:
    for name in ("one", "two"):
        api.create(f"{space}/pods", pod(name))
    with api.watch(f"{space}/pods", {"fieldSelector": "metadata.name=two"}) as events:
        assert _seen(next(events)) == ("ADDED", "two")


def test_a_watch_speaks_websocket(url: str, api: Api, space: str) -> None:
    """The client of Spark asks for it."""

    async def seen(origin: str | None) -> tuple[list[tuple[str, str]], bool]:
        path = f"{url}{space}/pods?watch=true"
        async with aiohttp.ClientSession() as session, session.ws_connect(path, origin=origin) as watch:
            found = [_seen(await watch.receive_json())]
            await watch.ping(b"are you there")
            api.create(f"{space}/pods", pod("two", annotations={"long": "a" * 70_000}))
            found.append(_seen(await watch.receive_json()))
            await watch.ping(b"and now")
            return found, await watch.close()

    api.create(f"{space}/pods", pod("one"))
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        asyncio.run(seen(None))
    assert asyncio.run(seen(url)) == ([("ADDED", "one"), ("ADDED", "two")], True)


def test_a_watch_ends_after_its_time(api: Api, space: str) -> None:
    with api.watch(f"{space}/pods", {"timeoutSeconds": 1}) as events:
        assert list(events) == []


def test_a_watch_from_a_version_that_is_too_old_says_410(api: Api, space: str) -> None:
    with api.watch(f"{space}/pods", {"resourceVersion": "1"}) as events:
        [event] = events
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def _seen(event: Object) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


# --- faults that a test asks for --------------------------------------------------------------------------------------


def test_an_answer_is_lost_and_the_request_was_done(small_server: ApiServer) -> None:
    api, space = Api(small_server.url), "/api/v1/namespaces/default"
    small_server.lose_answers("POST", "/pods$")
    with pytest.raises(ConnectionError):
        api.create(f"{space}/pods", pod("one"))
    refused(409, "AlreadyExists", api.create, f"{space}/pods", pod("one"))
    api.close()


def test_requests_are_refused_as_told_and_by_a_missing_token(small_server: ApiServer) -> None:
    api, space = Api(small_server.url), "/api/v1/namespaces/default"
    small_server.refuse("GET", "/pods$", 403, times=2)
    for _ in range(2):
        refused(403, "Forbidden", api.get, f"{space}/pods")
    assert names(api.get(f"{space}/pods")) == []
    small_server.token = "right"
    refused(401, "Unauthorized", api.get, f"{space}/pods")
    known = Api(small_server.url, "right")
    assert names(known.get(f"{space}/pods")) == []
    api.close()
    known.close()


def test_watches_break_history_is_forgotten_and_the_server_is_away(small_server: ApiServer) -> None:
    api, space = Api(small_server.url), "/api/v1/namespaces/default"
    since = api.create(f"{space}/pods", pod("one"))["metadata"]["resourceVersion"]
    with api.watch(f"{space}/pods", {"resourceVersion": since}) as events:
        threading.Timer(0.1, small_server.break_watches).start()
        assert list(events) == []
    small_server.forget()
    with api.watch(f"{space}/pods", {"resourceVersion": since}) as events:
        assert next(events)["object"]["code"] == 410
    small_server.go_down()
    with pytest.raises(OSError):
        api.get(f"{space}/pods")
    small_server.come_back()
    assert names(api.get(f"{space}/pods")) == ["one"]
    api.close()
