"""The API server and the node of a Kubernetes, on loopback: pods are processes of this machine.

    with LoopbackKubernetes(directory) as cluster:
        …--master k8s://{cluster.url}

It has what Spark's scheduler asks for: pods, by name and by label, config maps, and their deletion. The container of a
pod that is made is started as a node would: command and arguments of its manifest, and no variables but those that the
manifest has, with the pod's address for `status.podIP`, and those of `secrets` by `envFrom`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

POD_IP = "127.0.0.1"
PLURALS = {"pods": "PodList", "configmaps": "ConfigMapList", "services": "ServiceList",
           "persistentvolumeclaims": "PersistentVolumeClaimList"}  # fmt: skip


class LoopbackKubernetes:
    """Objects are changed by the server's threads, under `_lock`."""

    def __init__(self, directory: Path, secrets: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`secrets`: by name, the variables that `envFrom` makes of them."""
        self._directory = directory
        self._secrets = dict(secrets or {})
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.bodies: list[bytes] = []
        """All that was sent to the server."""
        self.made: list[dict[str, Any]] = []
        """Manifests of pods, as they were sent."""
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, found = cluster.answer(self.command, self.path, body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the names of http.server

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for name in list(self._processes):
            self._end(name)

    def put_pod(self, name: str) -> None:
        """A pod that runs already: the driver's."""
        self._objects["pods", name] = _stored({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}})

    def log_of(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    @property
    def pods(self) -> list[str]:
        with self._lock:
            return [name for kind, name in self._objects if kind == "pods"]

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        place = urllib.parse.urlsplit(path)
        words = place.path.strip("/").split("/")
        chosen = dict(urllib.parse.parse_qsl(place.query))
        if words[:3] != ["api", "v1", "namespaces"] or len(words) < 5 or words[4] not in PLURALS:
            return 404, _status(404, f"{method} {path}")
        kind, name = words[4], words[5] if len(words) > 5 else ""
        with self._lock:
            self.bodies.append(body)
            if method == "POST":
                return 201, self._create(kind, json.loads(body))
            named = [key for key in self._objects if key[0] == kind and (key[1] == name or not name)]
            found = [key for key in named if _has(self._objects[key], chosen.get("labelSelector", ""))]
            if name and not found:
                return 404, _status(404, f"{kind} {name!r} not found")
            if method == "DELETE":
                for key in found:
                    del self._objects[key]
                    if kind == "pods":
                        self._end(key[1])
                return 200, _status(200, "deleted")
            if method != "GET" and not name:
                return 405, _status(405, method)
            if name:  # A patch changes nothing that matters here.
                return 200, self._objects[found[0]]
            items = [self._objects[key] for key in found]
            return 200, {
                "kind": PLURALS[kind],
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }

    def _create(self, kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
        made = _stored(manifest)
        self._objects[kind, made["metadata"]["name"]] = made
        if kind == "pods":
            self.made.append(manifest)
            self._start(manifest)
        return made

    def _start(self, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        (container,) = manifest["spec"]["containers"]
        command = [*container.get("command", []), *container.get("args", [])]
        assert command[0] == "python3", "the image's own Python"
        fields = {"status.podIP": POD_IP, "metadata.name": name}
        directory = self._directory / name
        directory.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        for source in container.get("envFrom", []):
            environment |= self._secrets.get(source["secretRef"]["name"], {})
        for each in container["env"]:
            field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[each["name"]] = each.get("value", "") if field is None else fields[field]
        environment["SPARK_LOCAL_DIRS"] = str(directory)  # A volume in a cluster.
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command[1:]], cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.terminate()
            process.wait()


def _stored(manifest: dict[str, Any]) -> dict[str, Any]:
    """As the API server returns it, of a pod that runs."""
    metadata = {
        "uid": manifest["metadata"]["name"],
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "resourceVersion": "1",
    }
    running = {"phase": "Running", "podIP": POD_IP, "conditions": [{"type": "Ready", "status": "True"}]}
    return {**manifest, "metadata": {**manifest["metadata"], **metadata}, "status": running}


def _has(found: Mapping[str, Any], selector: str) -> bool:
    """Whether an object has the labels of a selector `a=b,c!=d,e in (f)`; of `in` one value is known."""
    labels = found["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, is_not, value = term.partition("!=") if "!=" in term else term.partition("=")
        if (labels.get(name) == value) == (is_not == "!="):
            return False
    return True


def _status(code: int, message: str) -> dict[str, Any]:
    kind = "Success" if code < 400 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": kind, "code": code, "message": message}
