"""Kubernetes' own API server with its garbage collector, for tests: built once by `.ci/kubernetes`, where there is Go.

It is plain HTTP, and whoever asks may do anything: a proxy stands in front of it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from demo.standalone import free_port
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.problems import Problem
from tests.support.waiting import eventually

VERSION = "1.36.3"
HERE = "127.0.0.1"
ANYTHING = {
    "apiVersion": "abac.authorization.kubernetes.io/v1beta1",
    "kind": "Policy",
    "spec": {
        "group": "system:unauthenticated",
        "namespace": "*",
        "resource": "*",
        "apiGroup": "*",
        "nonResourcePath": "*",
    },
}
"""What those may do who do not say who they are, and so all."""


def program() -> Path:
    """Where it is when it is built."""
    return Path.home() / ".cache" / "airflow-logio" / f"kubernetes-{VERSION}" / "kube"


def why_not() -> str | None:
    """Why this machine cannot run it, in words; None if it can."""
    if program().exists():
        return None
    return f"Kubernetes' own API server is not built: `.ci/kubernetes` builds it with Go, once, as {program()}"


@dataclass
class Kubernetes:
    """Its parts are processes, which a test may kill. `url` is for this machine; pods reach it at `port`, too."""

    folder: Path
    port: int
    parts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self.port}"

    def start(self) -> None:
        ports = {name: free_port() for name in ("etcd", "peer", "api")}
        etcd = f"http://{HERE}:{ports['etcd']}"
        self._begin("etcd", str(self.folder / "etcd"), etcd, f"http://{HERE}:{ports['peer']}")
        eventually(lambda: _has_versions(etcd), what="etcd is there", timeout=120, every=0.1)
        key, policy = self._written("key.pem", _key()), self._written("policy.json", json.dumps(ANYTHING))
        self._begin(
            "apiserver",
            f"--etcd-servers={etcd}",
            f"--secure-port={ports['api']}",
            f"--bind-address={HERE}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=ABAC",
            f"--authorization-policy-file={policy}",
            "--anonymous-auth=true",
            "--disable-admission-plugins=ServiceAccount",
        )
        self._ports = ports
        self.come_back()
        user = {"clusters": [{"name": "it", "cluster": {"server": self.url}}], "users": [{"name": "it", "user": {}}]}
        context = {"current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}
        settings = self._written("kubeconfig", json.dumps({"apiVersion": "v1", "kind": "Config", **user, **context}))
        self._begin(
            "controllers",
            f"--kubeconfig={settings}",
            "--controllers=garbage-collector-controller,namespace-controller",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def come_back(self) -> None:
        """It can be reached, at the port that it has always had."""
        self._begin("proxy", f"0.0.0.0:{self.port}", f"https://{HERE}:{self._ports['api']}")
        eventually(self._is_ready, what="the API server is ready", timeout=240, every=0.1)

    def go_down(self) -> None:
        """It cannot be reached: all watches and other connections end. Its own parts go on."""
        proxy = self.parts.pop("proxy")
        proxy.kill()
        proxy.wait(timeout=60)

    def break_watches(self) -> None:
        """All watches end, and other connections, too."""
        self.go_down()
        self.come_back()

    def close(self) -> None:
        for part in self.parts.values():
            part.kill()
        for part in self.parts.values():
            part.wait(timeout=60)

    def _begin(self, part: str, *arguments: str) -> None:
        with (self.folder / f"{part}.log").open("ab") as log:
            self.parts[part] = subprocess.Popen(
                [program(), part, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def _written(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def _is_ready(self) -> bool:
        for name, part in self.parts.items():
            if part.poll() is not None:
                raise AssertionError(f"{name} has ended: {(self.folder / f'{name}.log').read_text()[-3000:]}")
        api = Api(self.url)
        try:
            return bool(api.get("/readyz") == "ok" and api.get("/api/v1/namespaces/default"))
        except (OSError, Problem):
            return False
        finally:
            api.close()


@contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    one = Kubernetes(folder, free_port())
    try:
        one.start()
        yield one
    finally:
        one.close()


def _has_versions(etcd: str) -> bool:
    """Some, so that the first ones are too old for whatever the API server watches."""
    try:
        for _ in range(10):
            body = json.dumps({"key": base64.b64encode(b"/of-tests").decode(), "value": ""}).encode()
            with urllib.request.urlopen(f"{etcd}/v3/kv/put", body, timeout=30) as answer:
                answer.read()
    except OSError:
        return False
    return True


def _key() -> str:
    """That tokens of service accounts would be signed with; the server does not start without one."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
