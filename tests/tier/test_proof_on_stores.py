"""Evict on proof, through the doors that operators use: a bucket behind a network that flips a bit, a directory whose
files change, a restart in between, a consumer on the wire.
"""

from __future__ import annotations

import select
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.seaweedfs import SeaweedFS
from tier.tiered_world import bodies, sent
from tiermq.errors import CorruptSegment
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.verify.verify import verify_tier


class FlippingProxy:
    """Passes bytes on between clients and a server; flips one bit behind the first `marker` that a client sends."""

    def __init__(self, port: int, marker: bytes) -> None:
        self._target, self._marker = port, marker
        self.flipped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = bytearray(source.recv(1 << 20))
                    if not data:
                        return
                    at = data.find(self._marker)
                    if source is client and at >= 0 and not self.flipped:
                        self.flipped += 1
                        data[at + len(self._marker) - 1] ^= 1
                    (server if source is client else client).sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxied(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlippingProxy]:
    proxy = FlippingProxy(int(seaweedfs.endpoint.rsplit(":", 1)[1]), b"orders 0 33 ")
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value.replace(seaweedfs.endpoint, f"http://127.0.0.1:{proxy.port}"))
    yield proxy
    proxy.close()


def evict(world: BrokerWorld) -> int:
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.flush_to_tier()  # Nothing is new; the lease, which ran out, is taken again.
    return world.store.clean_now().log_files


def metric(world: BrokerWorld, name: str, label: str = "") -> float:
    lines = world.store.metrics.render_prometheus().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line)


SETTINGS: dict[str, Any] = {"tiered_store_file_reserved_time": 10_000, "tiered_store_commit_log_max_size": 1 << 20}


def test_a_bit_that_flips_on_its_way_into_a_bucket_is_found_and_repaired_before_files_go(
    proxied: FlippingProxy, tmp_path: Path
) -> None:
    world = BrokerWorld(tmp_path, open_driver(f"s3://history/{uuid.uuid4().hex}"), **SETTINGS)
    world.open()
    world.put(200)
    assert world.store.flush_to_tier()
    assert proxied.flipped == 1
    assert evict(world) > 0
    assert metric(world, "tiermq_tier_proof_repairs_total") == 1
    assert bodies(world) == sent(world)
    assert verify_tier(world.driver).is_clean
    world.bury()


def test_what_s3_confirmed_by_its_checksum_is_not_read_back(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    for mode in ("checksum", "readback"):
        driver = open_driver(f"s3://history/{uuid.uuid4().hex}")
        rereads: list[SegmentKey] = []
        read_back = driver.reread

        def reread(
            key: SegmentKey, position: int, length: int, rereads: Any = rereads, read_back: Any = read_back
        ) -> Any:
            rereads.append(key)
            return read_back(key, position, length)

        monkeypatch.setattr(driver, "reread", reread)
        world = BrokerWorld(tmp_path / mode, driver, tier_proof_mode=mode, **SETTINGS)
        world.open()
        world.put(200)
        assert world.store.flush_to_tier()
        assert evict(world) > 0
        world.put(200)
        assert world.store.flush_to_tier()
        assert evict(world) > 0
        assert bool(rereads) == (mode == "readback")
        other = {"checksum": "readback", "readback": "checksum"}[mode]
        assert metric(world, "tiermq_tier_proven_bytes_total", f'how="{mode}"') > 0
        assert metric(world, "tiermq_tier_proven_bytes_total", f'how="{other}"') == 0
        assert bodies(world) == sent(world)
        world.bury()


def changed_file(root: Path, kind: SegmentType, at: int) -> None:
    files = [path for path in root.rglob(f"orders/0/{kind.name}/*") if path.suffix == ""]
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("kind", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_tiers_file_that_changed_on_its_disk_is_repaired_before_local_files_go(
    tmp_path: Path, kind: SegmentType, restarted: bool
) -> None:
    world = BrokerWorld(tmp_path, PosixDriver(tmp_path / "tier"), **SETTINGS)
    world.open()
    world.put(200)
    assert world.store.flush_to_tier()
    changed_file(tmp_path / "tier", kind, 530)
    assert not verify_tier(world.driver).is_clean
    if restarted:
        world.kill()
        world.open()
        world.put(1)
        assert world.store.flush_to_tier()
    assert evict(world) > 0
    assert metric(world, "tiermq_tier_proof_failures_total") == 1
    assert bodies(world) == sent(world)
    assert verify_tier(world.driver).is_clean
    world.bury()


def test_what_rots_when_only_the_tier_has_it_is_an_error_for_readers_and_no_jump(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, PosixDriver(tmp_path / "tier"), **SETTINGS)
    world.open()
    world.put(200)
    assert world.store.flush_to_tier()
    assert evict(world) > 0
    changed_file(tmp_path / "tier", SegmentType.COMMIT_LOG, 530)
    with pytest.raises(CorruptSegment, match="not what was written"):
        world.store.get("orders", 0, 0)
    world.bury()
