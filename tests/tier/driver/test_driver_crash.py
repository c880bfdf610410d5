"""Processes that die: a writer in the middle of its writes, and the server under it. What was acknowledged stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from servers.seaweedfs import SeaweedFS, Unavailable
from tier.driver.acknowledging_writer import block
from tier.driver.conformance import fresh_segment
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.retry import RetryPolicy
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentKey

BLOCK_BYTES = 50_000
WRITER = Path(__file__).with_name("acknowledging_writer.py")

pytestmark = pytest.mark.crash


def killed_after(acknowledged_count: int, url: str, key: SegmentKey, environment: dict[str, str]) -> int:
    """Let a process write, kill -9 it, and return the end that it last spoke of."""
    arguments = [sys.executable, str(WRITER), url, key.path, str(BLOCK_BYTES)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, env={**os.environ, **environment}, text=True)
    assert process.stdout is not None
    try:
        for _ in range(acknowledged_count):
            assert process.stdout.readline(), "the writer ended by itself"
        process.kill()
        rest = process.stdout.read().split()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return max([acknowledged_count * BLOCK_BYTES, *map(int, rest)])


def check_and_go_on(driver: TierDriver, key: SegmentKey, acknowledged: int, *, torn: bool) -> None:
    size = driver.size(key)
    assert acknowledged <= size <= acknowledged + BLOCK_BYTES
    assert torn or size % BLOCK_BYTES == 0
    expected = b"".join(block(number, BLOCK_BYTES) for number in range(size // BLOCK_BYTES + 1))
    assert driver.read(key, 0, size) == expected[:size]
    # Whatever of it has landed: to send the same block again is always right.
    last = acknowledged // BLOCK_BYTES
    driver.write(key, acknowledged, [block(last, BLOCK_BYTES)])
    assert driver.size(key) == acknowledged + BLOCK_BYTES
    driver.seal(key)
    assert driver.read(key, 0, acknowledged + BLOCK_BYTES) == expected[: acknowledged + BLOCK_BYTES]


@pytest.mark.parametrize("options", ["", "?driver=object"])
def test_what_a_killed_writer_had_acknowledged_is_in_the_directory(tmp_path: Path, options: str) -> None:
    url, key = tmp_path.as_uri() + options, fresh_segment()
    acknowledged = killed_after(20, url, key, {})
    check_and_go_on(open_driver(url), key, acknowledged, torn=not options)


def test_what_a_killed_writer_had_acknowledged_is_in_the_bucket(seaweedfs: SeaweedFS) -> None:
    url, key = "s3://history/killed-writer", fresh_segment()
    acknowledged = killed_after(20, url, key, seaweedfs.environment)
    check_and_go_on(open_driver(url, environment=seaweedfs.environment), key, acknowledged, torn=False)


@pytest.fixture
def mortal_server(tmp_path: Path) -> Iterator[SeaweedFS]:
    try:
        server = SeaweedFS(tmp_path)
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        yield server


@pytest.mark.slow
def test_what_a_killed_server_had_acknowledged_is_there_when_it_is_back(mortal_server: SeaweedFS) -> None:
    """The writer never learns of it: its client waits, tries again, and settles what it does not know."""
    key = fresh_segment()
    patient = RetryPolicy(tries_max=10_000, first_wait_ms=50, wait_max_ms=500, failures_max=10_000)
    writer = open_driver("s3://history/p", environment=mortal_server.environment, retry=patient)
    acknowledged, enough, writes = [0], threading.Event(), threading.Semaphore(0)

    def write_on() -> None:
        while not enough.is_set():
            number = acknowledged[0] // BLOCK_BYTES
            writer.write(key, acknowledged[0], [block(number, BLOCK_BYTES)])
            acknowledged[0] += BLOCK_BYTES
            writes.release()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_on)
        writing.add_done_callback(lambda _: writes.release(1_000))  # A writer that has ended is not waited for.
        try:
            for _ in range(2):
                for _ in range(10):
                    writes.acquire()
                assert not writing.done()
                before = acknowledged[0]
                mortal_server.kill()
                mortal_server.start()
                reader = open_driver("s3://history/p", environment=mortal_server.environment, retry=patient)
                assert reader.read(key, 0, before) == b"".join(
                    block(number, BLOCK_BYTES) for number in range(before // BLOCK_BYTES)
                )
        finally:
            enough.set()
            if writing.exception() is not None:
                writer.close()
        writing.result()
    check_and_go_on(reader, key, acknowledged[0], torn=False)
