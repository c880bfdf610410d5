"""`tiermq` commands in processes of their own, forked from one that has the package loaded.

    with a test process:  Preloaded(["serve", …]) ──request──► template ──fork──► the command

A command costs 20 ms of processor before it begins instead of 400: half of what many tests took was imports. It is a
process like any other, with a pid, signals and files of its own, and it can be killed at any moment. The template ends
with the process that uses it. Where commands differ by what is imported, start them by `sys.executable`.

Protocol: one packet for a command, with the descriptors of its stdout, its stderr and a pipe; on the pipe the template
writes the pid, a line, and when the command has ended its return code, as `subprocess` counts it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

LOADED = ("serve", "follow", "controller", "namesrv")
"""Of `tiermq.cli`."""
REQUEST_BYTES_MAX = 1 << 20


class Preloaded:
    """One command. Used by one thread; the names are those of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stderr: IO[bytes] | int | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> None:
        """stdout is a pipe. stderr is this process's, a file, or with `PIPE` one for no more than a pipe holds.

        `constants`: other values of constants, by module and name: times that no setting has and no test can wait for.
        """
        pipes = [os.pipe() for _ in range(3 if stderr == subprocess.PIPE else 2)]
        request = {
            "arguments": list(arguments),
            "environment": dict(environment or os.environ),
            "directory": str(directory or Path.cwd()),
            "constants": dict(constants or {}),
        }
        (_, out), (_, reported), *more = pipes
        errors = more[0][1] if more else 2 if stderr is None or isinstance(stderr, int) else stderr.fileno()
        try:
            socket.send_fds(
                _template(os.getpid(), _network()).requests, [json.dumps(request).encode()], [out, errors, reported]
            )
        finally:
            for _, writing in pipes:
                os.close(writing)
        files = [cast("IO[str]", open(reading, encoding="utf-8")) for reading, _ in pipes]  # noqa: SIM115
        self.stdout, self._status = files[:2]
        self.stderr = files[2] if more else None
        self.returncode: int | None = None
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        with self.stdout, self.stderr or io.StringIO() as errors:
            found = self.stdout.read(), errors.read()
        self.wait()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait for its end, as `subprocess.Popen` does."""
        self.wait()
        for file in (self.stdout, self.stderr):
            if file is not None:
                file.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def completed(arguments: Sequence[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its errors must not be more than a pipe holds."""
    process = Preloaded(arguments, stderr=subprocess.PIPE, directory=directory)
    found, errors = process.communicate()
    return subprocess.CompletedProcess(list(arguments), process.wait(), found, errors)


class _Template(NamedTuple):
    requests: socket.socket
    process: subprocess.Popen[bytes]


def _network() -> str:
    """The network of this thread: commands must have the same."""
    try:
        return os.readlink("/proc/thread-self/ns/net")
    except OSError:  # No /proc, no networks of its own.
        return ""


@functools.cache
def _template(_of_process: int, _in_network: str) -> _Template:
    """The template of this process. It ends when the socket is closed, which is when this process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        command = [sys.executable, "-m", "servers.preloaded", str(theirs.fileno())]
        return _Template(ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL))


def serve_template(requests: socket.socket) -> bool:
    """Fork a command for each request. True in a command, whose arguments are `sys.argv`; False at the end."""
    woken, waking = os.pipe()
    for end in (woken, waking):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    reports: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(reports)
        if requests.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return False
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (woken, waking, *reports.values()):
                os.close(each)
            requests.close()
            _become(json.loads(data), descriptors)
            return True
        os.close(descriptors[0])
        os.close(descriptors[1])
        reports[pid] = descriptors[2]
        os.write(descriptors[2], b"%d\n" % pid)


def _report_ended(reports: dict[int, int]) -> None:
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError), open(reports.pop(pid), "wb", buffering=0) as report:
            report.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """In the fork: the command's own arguments, environment, directory, files and constants."""
    os.dup2(descriptors[0], 1)
    os.dup2(descriptors[1], 2)
    for each in descriptors:
        os.close(each)
    os.environ.clear()
    os.environ.update(cast("dict[str, str]", request["environment"]))
    os.chdir(cast("str", request["directory"]))
    for name, value in cast("dict[str, int]", request["constants"]).items():
        module, _, constant = name.rpartition(".")
        assert isinstance(getattr(sys.modules[module], constant), int)
        setattr(sys.modules[module], constant, value)
    sys.argv = ["tiermq", *cast("list[str]", request["arguments"])]


if __name__ == "__main__":
    import importlib

    from tiermq.cli.main import main

    for name in LOADED:
        importlib.import_module(f"tiermq.cli.{name}")
    importlib.import_module("tiermq.tier.tiered_store")
    gc.collect()
    gc.freeze()
    if serve_template(socket.socket(fileno=int(sys.argv[1]))):
        main()
