"""Azure's own emulator of blob storage for tests: Azurite from npm, on a free loopback port.

The package goes into `$TIERMQ_CACHE` or `~/.cache/tiermq`, once; where npm or its registry are missing, `Unavailable`
says so. Telemetry is off. The account and its key are our own, made up for the tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from servers.loopback import free_ports, stop

VERSION = "3.37.0"
ACCOUNT = "tiermqtests"
ACCOUNT_KEY = base64.b64encode(b"an account key that no error may show").decode()
API_VERSION = "2021-12-02"
START_SECONDS_MAX = 120
_POLL_SECONDS = 0.1


class Unavailable(Exception):
    """The server cannot be had on this machine; the text says why."""


def program() -> Path:
    """The `azurite-blob` program, fetched into the cache when it is not there yet."""
    cache = Path(os.environ.get("TIERMQ_CACHE") or Path.home() / ".cache" / "tiermq")
    home = cache / f"azurite-{VERSION}"
    found = home / "node_modules" / ".bin" / "azurite-blob"
    if found.exists():
        return found
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed, and Azurite comes from there")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", scratch, f"azurite@{VERSION}"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Unavailable(f"npm could not install azurite@{VERSION}: {made.stderr.strip()[-300:]}")
        if not found.exists():  # Another run may have been faster.
            Path(scratch, "node_modules").rename(_made(home) / "node_modules")
    return found


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


class Azurite:
    """One server process; used by one thread."""

    def __init__(self, directory: Path) -> None:
        self._program = program()
        self._directory = directory
        [self._port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        """What a user of this server would have in the environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
        }

    def start(self) -> None:
        command = [str(self._program), "--blobHost", "127.0.0.1", "--blobPort", str(self._port)]
        command += ["--location", str(self._directory), "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
        with (self._directory / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._wait_for_a_container()

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None

    def create_container(self, name: str) -> None:
        """One signed PUT; obstore has no call for it."""
        headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": API_VERSION}
        signed = "PUT" + "\n" * 12 + "".join(f"{key}:{headers[key]}\n" for key in sorted(headers))
        signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        address = f"{self.endpoint}/{name}?restype=container"
        with urllib.request.urlopen(
            urllib.request.Request(address, method="PUT", headers=headers), timeout=30
        ) as answer:
            answer.read()

    def _wait_for_a_container(self) -> None:
        assert self._process is not None
        given_up_at = time.monotonic() + START_SECONDS_MAX
        last = ""
        while time.monotonic() < given_up_at:
            if self._process.poll() is not None:
                raise Unavailable(f"azurite ended with {self._process.returncode}: see {self._directory}/azurite.log")
            try:
                self.create_container("started")
                return
            except urllib.error.HTTPError as error:
                raise Unavailable(f"azurite refused a container: {error}") from error
            except OSError as error:
                last = str(error)
            time.sleep(_POLL_SECONDS)
        raise Unavailable(f"azurite answered nothing within {START_SECONDS_MAX} s: {last}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
