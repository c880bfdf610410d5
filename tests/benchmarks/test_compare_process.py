"""Memory of processes is read as the kernel reports it, and a start is measured to a message that was accepted."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.broker_side import QUEUES, TOPIC
from benchmarks.compare import broker_process
from benchmarks.compare.broker_process import BrokerProcess, first_message, forget_peak, resident, settled
from benchmarks.compare.peer_process import PeerFailed
from benchmarks.compare.process_works import WORKS
from benchmarks.compare.work import ROCKETMQ, TIERMQ, Place, by_name
from interop.rocketmq import Unavailable, fetch
from tiermq.kernel.frame_reader import LENGTHS
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.frame import decode_frame, encode_frame
from tiermq.testing import LocalBroker

MIB = 1 << 20
OBEYING = """
import mmap, os, subprocess, sys
held = {}
for line in sys.stdin:
    verb, amount = line.split()
    if verb == "own":
        held["own"] = b"x" * int(amount)
    elif verb == "file":
        with open(sys.argv[1], "r+b") as file:
            held["file"] = mmap.mmap(file.fileno(), int(amount))
        held["sum"] = sum(held["file"][::4096])
    elif verb == "child":
        code = f"held = b'x' * {amount}; print('held', flush=True); input()"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        held["child"] = child
    print("done", flush=True)
"""


class Obeying:
    """A process that takes as much memory as it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def take(self, verb: str, amount: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{verb} {amount}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def obeying(tmp_path: Path) -> Iterator[Obeying]:
    mapped = tmp_path / "mapped"
    mapped.write_bytes(b"m" * 32 * MIB)
    command = [sys.executable, "-c", OBEYING, str(mapped)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        made = Obeying(process)
        made.take("nothing", 0)
        yield made


def test_resident_memory_shows_a_process_own_from_pages_of_files(obeying: Obeying) -> None:
    before = resident(obeying.pid)
    obeying.take("own", 48 * MIB)
    obeying.take("file", 32 * MIB)
    after = resident(obeying.pid)
    assert 47 * MIB < after.anonymous - before.anonymous < 56 * MIB
    assert 31 * MIB < after.files + after.shared - before.files - before.shared < 40 * MIB
    assert after.whole == after.anonymous + after.files + after.shared


def test_resident_memory_counts_children(obeying: Obeying) -> None:
    before = resident(obeying.pid)
    obeying.take("child", 48 * MIB)
    assert resident(obeying.pid).anonymous - before.anonymous > 47 * MIB


def test_a_forgotten_peak_is_counted_again(obeying: Obeying) -> None:
    obeying.take("own", 64 * MIB)
    obeying.take("own", 0)
    high = resident(obeying.pid)
    assert high.peak - high.whole > 60 * MIB
    forget_peak(obeying.pid)
    again = resident(obeying.pid)
    assert again.peak - again.whole < 8 * MIB


def test_memory_has_settled_when_two_looks_agree(obeying: Obeying) -> None:
    wanted = iter([24 * MIB, 48 * MIB, 48 * MIB])
    found = settled(obeying.pid, lambda: obeying.take("own", next(wanted)))
    assert found.anonymous > 48 * MIB
    assert list(wanted) == []


def test_memory_that_never_settles_is_reported(obeying: Obeying) -> None:
    wanted = iter(range(8 * MIB, 1 << 30, 8 * MIB))
    with pytest.raises(PeerFailed, match="expected its memory to settle"):
        settled(obeying.pid, lambda: obeying.take("own", next(wanted)))


def test_memory_of_a_process_that_has_ended_is_no_zero() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(PeerFailed, match="found it ended"):
        resident(process.pid)


@contextlib.contextmanager
def living() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a broker which starts."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_first_message_is_one_that_was_accepted_not_one_that_was_answered() -> None:
    codes = [ResponseCode.SERVICE_NOT_AVAILABLE, None, ResponseCode.SUCCESS]
    taken: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening, living() as process:

        def answer() -> None:
            for code in codes:
                peer, _ = listening.accept()
                with peer, peer.makefile("rb") as stream:
                    head = stream.read(LENGTHS.size)
                    asked = decode_frame(head + stream.read(LENGTHS.unpack(head)[0] - 4))
                    taken.append(asked.ext["b"])
                    if code is not None:
                        peer.sendall(encode_frame(asked.respond(code, "as the test wants")))

        thread = threading.Thread(target=answer)
        thread.start()
        assert first_message(listening.getsockname(), process).code == ResponseCode.SUCCESS
        thread.join()
    assert taken == [TOPIC] * 3


def test_a_broker_that_ends_before_its_first_message_is_reported() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # Nothing listens there.
        command = [sys.executable, "-c", "raise SystemExit(3)"]
        with subprocess.Popen(command) as process, pytest.raises(PeerFailed, match="found it ended with 3"):
            first_message(bound.getsockname(), process)


def test_a_broker_is_started_twice_on_one_store_and_has_both_first_messages(tmp_path: Path) -> None:
    server = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv")))
    server.start()
    try:
        broker = BrokerProcess(TIERMQ, None, tmp_path, f"127.0.0.1:{server.port}")
        for count in (1, 2):
            with broker:
                assert broker.start() > 0.0
                broker.await_registered()
                broker.await_messages(count)
                assert resident(broker.pid).whole > 10 * MIB
    finally:
        server.stop()


def test_a_broker_that_cannot_start_shows_what_it_reported(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("no directory")
    broker = BrokerProcess(TIERMQ, None, tmp_path, "127.0.0.1:1", store)
    with broker, pytest.raises(PeerFailed, match="(?s)found it ended with 2.*tiermq serve"):
        broker.start()


def test_messages_that_a_broker_does_not_have_are_missed(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store") as running:
        running.create_topic(TOPIC, queues=QUEUES)
        running.send(TOPIC, b"one")
        running.send(TOPIC, b"two")
        broker = BrokerProcess(TIERMQ, None, tmp_path, running.name_server)
        broker.address = "127.0.0.1", int(running.address.rpartition(":")[2])
        broker.await_messages(2)
        with pytest.raises(PeerFailed, match="expected 1 messages in Load, found 2"):
            broker.await_messages(1)


def test_a_broker_is_started_from_compiled_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = broker_process.compiled_modules(tmp_path)
    code = "import tiermq.cli.serve as serve; print(serve.__cached__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    assert Path(done.stdout.strip()).exists()


def test_only_the_two_brokers_can_be_started(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found 'limit'"):
        BrokerProcess("limit", None, tmp_path, "127.0.0.1:1")


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(by_name(WORKS)))
def test_a_process_work_runs_on_both_sides(name: str, tmp_path: Path) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    work = by_name(WORKS)[name]
    with ExitStack() as stack:
        sides = work.opener(Place(tmp_path, tmp_path, quick=True), stack)
        figures = {side: work.kind.of(run()) for side, run in sides.rounds.items()}
    assert set(figures) == {TIERMQ, ROCKETMQ}
    assert min(figures.values()) > 0.0
