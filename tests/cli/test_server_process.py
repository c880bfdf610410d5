"""A signal ends the wait, whenever it comes and whichever thread gets it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.test_serve_command import FREE
from tiermq.cli.server_process import NUMBERS, EndSignals, Watchdog, notify_manager
from tiermq.testing import LocalBroker
from waiting import until

CHILD = """
import ctypes, sys, threading
from tiermq.cli.server_process import limit_heaps
limited = limit_heaps() if sys.argv[1] == "limit" else None
together = threading.Barrier(12)
held = []
def allocate():
    together.wait()
    held.extend(bytearray(100_000) for _ in range(20))
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
print(limited)
"""


def unasked() -> None:
    raise AssertionError("nobody hung up")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_gets_ends_the_wait_of_the_main_thread(number: int) -> None:
    with EndSignals() as ending:
        # The handler of such a signal does not wake a main thread that waits for a lock.
        threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number)).start()
        ending.wait(unasked)


def test_a_signal_that_came_before_the_wait_is_not_lost() -> None:
    with EndSignals() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        ending.wait(unasked)


def test_a_signal_that_means_something_else_does_not_end_the_wait() -> None:
    order: list[str] = []

    def end() -> None:
        order.append("the end")
        os.kill(os.getpid(), signal.SIGTERM)

    def heard(_number: int, _frame: object) -> None:
        order.append("something else")
        threading.Thread(target=end).start()

    before = signal.signal(signal.SIGUSR1, heard)
    try:
        with EndSignals() as ending:
            os.kill(os.getpid(), signal.SIGUSR1)
            ending.wait(unasked)
            assert order == ["something else", "the end"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_signals_mean_afterwards_what_they_meant_before() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with EndSignals():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_end_signal_behind_a_flood_of_others_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    try:
        with EndSignals() as ending:
            for _ in range(10_000):  # Far more than the socket holds.
                signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            ending.wait(unasked)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert capfd.readouterr().err == ""


HANGING = """
import os, sys, threading
from tiermq.cli.server_process import EndSignals
with EndSignals() as ending:
    if sys.argv[1] == "full":
        os.set_blocking(2, False)
        try:
            while True:
                os.write(2, bytes(4096))
        except BlockingIOError:
            os.set_blocking(2, True)
    print("serving", flush=True)
    ending.wait(lambda: None)
    print("ending", flush=True)
    if sys.argv[1] == "full":
        sys.stderr.write("this hangs, and holds the lock of sys.stderr\\n")
    threading.Event().wait()
"""


@pytest.mark.parametrize("stderr", ["read", "full", "closed"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_ends_a_process_at_once_whose_end_hangs(number: int, stderr: str) -> None:
    command = [sys.executable, "-c", HANGING, stderr]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "serving\n"
            if stderr == "closed":
                process.stderr.close()
            process.send_signal(number)
            assert process.stdout.readline() == "ending\n"
            while process.poll() is None:  # Those that come right behind the first are taken for it.
                process.send_signal(number)
                os.sched_yield()
        finally:
            process.kill()
        assert process.returncode == 128 + number
        if stderr == "read":
            assert process.stderr.read() == "ended at once by a second signal; the store recovers at its next start\n"


def test_a_hangup_is_heard_and_does_not_end_the_wait() -> None:
    heard: list[str] = []

    def reload() -> None:
        heard.append("hangup")
        os.kill(os.getpid(), signal.SIGHUP if len(heard) < 2 else signal.SIGTERM)

    with EndSignals() as ending:
        os.kill(os.getpid(), signal.SIGHUP)
        ending.wait(reload)
    assert heard == ["hangup", "hangup"]


def heaps(tmp_path: Path, word: str, **variables: str) -> tuple[str, int]:
    """What was said of the limit, and how many heaps glibc then had."""
    path = tmp_path / "heaps.xml"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, word, str(path)], capture_output=True, text=True, check=True, env=own | variables
    )
    return done.stdout.strip(), len(re.findall(r"<heap nr=", path.read_text()))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_threads_share_two_heaps_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert heaps(tmp_path, "limit") == ("True", 2)
    said, found = heaps(tmp_path, "plain")
    assert said == "None"
    assert found > 2
    said, found = heaps(tmp_path, "limit", MALLOC_ARENA_MAX="5")
    assert said == "False"
    assert found > 2


def test_a_service_manager_is_notified_when_a_server_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tiermq.cli", "namesrv", "--port", "0", "--json"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {**os.environ, "HOME": str(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert manager.recv(100) == b"READY=1"
            process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
    assert process.returncode == 0


HANGUP_AT_ONCE = """
import importlib, os, signal, sys
from tiermq.cli.main import main
imported = importlib.import_module
def hung_up(name):
    os.kill(os.getpid(), signal.SIGHUP)
    return imported(name)
importlib.import_module = hung_up
main()
"""
"""Runs `tiermq` with a SIGHUP right before the command's own module is imported."""


@pytest.mark.parametrize("command", ["serve", "namesrv", "controller", "follow", "console"])
def test_a_hangup_while_a_server_command_is_imported_does_not_end_it(command: str) -> None:
    words = [sys.executable, "-c", HANGUP_AT_ONCE, command, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"tiermq {command}" in done.stdout


def test_hangups_from_the_start_on_do_not_end_a_server_and_one_after_it_is_honoured(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HANGUP_AT_ONCE, "serve", str(tmp_path / "store"), *FREE, "--json"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)}
    ) as server:
        ready = threading.Event()

        def hang_up() -> None:
            while not ready.wait(0.001):
                server.send_signal(signal.SIGHUP)

        sender = threading.Thread(target=hang_up)
        try:
            until(lambda: is_hangup_expected(server))
            sender.start()
            assert server.stdout is not None
            assert any('"event": "ready"' in line for line in server.stdout)
            ready.set()
            sender.join()
            server.send_signal(signal.SIGHUP)
            assert any('"reloaded"' in line for line in server.stdout)
            server.terminate()
            server.stdout.read()
            assert server.wait() == 0
        finally:
            ready.set()
            server.kill()


def is_hangup_expected(process: subprocess.Popen[str]) -> bool:
    """Whether a process that runs ignores SIGHUP or has a handler for it."""
    assert process.poll() is None, process.returncode
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = (int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)$", status, re.MULTILINE))
    return any(mask >> (signal.SIGHUP - 1) & 1 for mask in masks)


@contextmanager
def watched(path: Path, *words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], bytes]]]:
    """A server under a service manager, and the manager's next message that is no beat."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path / "notify"))
        environment = {**os.environ, "HOME": str(path), "NOTIFY_SOCKET": str(path / "notify"), **variables}
        command = [sys.executable, "-m", "tiermq.cli", *words, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                yield process, lambda: manager.recv(200)
            finally:
                process.kill()


def test_a_service_manager_is_notified_of_a_reload_and_of_its_end(tmp_path: Path) -> None:
    with watched(tmp_path, "serve", str(tmp_path / "store"), *FREE) as (process, next_message):
        assert next_message() == b"READY=1"
        process.send_signal(signal.SIGHUP)
        began = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)", next_message())
        assert began is not None
        assert 0 < int(began[1]) <= time.monotonic_ns() // 1000
        assert next_message() == b"READY=1"
        process.terminate()
        assert next_message() == b"STOPPING=1"
        assert process.wait() == 0


def test_a_broker_that_is_watched_notifies_again_and_again(tmp_path: Path) -> None:
    words = ("serve", str(tmp_path / "store"), *FREE)
    with watched(tmp_path, *words, WATCHDOG_USEC="30000") as (_process, next_message):
        assert next_message() == b"READY=1"
        assert [next_message() for _ in range(3)] == [b"WATCHDOG=1"] * 3


def test_a_loop_that_hangs_sends_no_beat_until_it_runs_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beats: list[str] = []
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setattr("tiermq.cli.server_process.notify_manager", beats.append)
    with LocalBroker(tmp_path / "store") as hangs, LocalBroker(tmp_path / "other") as runs:
        servers = [each.broker.parts.server for each in (hangs, runs)]
        entered, go_on, ran = threading.Event(), threading.Event(), threading.Event()

        def hang() -> None:
            entered.set()
            go_on.wait()

        servers[0].call_threadsafe(hang)
        entered.wait()
        Watchdog(lambda: servers).look()
        servers[1].call_threadsafe(ran.set)
        ran.wait()
        assert beats == []
        go_on.set()
        until(lambda: beats == ["WATCHDOG=1"])


def test_a_process_that_is_not_the_watched_one_sends_no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert Watchdog(lambda: ()).period_s == 1.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert Watchdog(lambda: ()).period_s is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Watchdog(lambda: ()).period_s == 1.0


def test_a_service_manager_that_is_gone_keeps_no_server_from_serving(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@tiermq-test-of-nobody")
    notify_manager("READY=1")
    assert "was not notified of READY=1" in caplog.text
