"""The tier's works: TierMQ's sides do what they say, the limits move the bytes they are named for, and RocketMQ's own
classes do the very same work.
"""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tiered_side, upload_side
from benchmarks.compare import peer_process, tier_data, tier_limits, tier_peer, tier_works
from benchmarks.compare.tier_data import RECORD_BYTES, Amount, Chance
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Place, Work, by_name
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore

SMALL = Amount.of(4 << 20)


def parameters_of(tmp_path: Path, amount: Amount = SMALL) -> dict[str, str]:
    given = amount.parameters(tmp_path / "store", tmp_path / "tier")
    return {name: str(value) for name, value in given.items()}


@pytest.fixture
def filled(tmp_path: Path) -> dict[str, str]:
    """What a side prepares, its local store filled."""
    tier_data.fill_store(tmp_path / "store", SMALL)
    return parameters_of(tmp_path)


def test_works_of_the_tier_have_names_of_their_own_and_the_goals_of_the_comparison() -> None:
    goals = {name: work.goal.ratio for name, work in by_name(tier_works.WORKS).items() if work.goal is not None}
    assert goals == {"tier_upload": 1.5, "cold_sequential": 1.5, "index_rearrange": 5.0}
    assert all(work.limit for work in tier_works.WORKS)


def test_every_queue_of_a_tier_work_has_the_same_number_of_messages_and_the_index_room_for_all() -> None:
    amount = Amount.of(10_000_000)
    assert amount.per_queue * tier_data.QUEUE_COUNT == amount.messages
    assert 0 <= 10_000_000 - amount.bytes < tier_data.QUEUE_COUNT * RECORD_BYTES
    assert amount.capacity - 1 > amount.messages
    assert Amount.of(1).messages == tier_data.QUEUE_COUNT


def test_the_chunks_of_the_limit_are_those_that_an_upload_writes(tmp_path: Path) -> None:
    amount = Amount.of(30 << 20)  # More than a batch for each queue.
    tier_data.fill_store(tmp_path / "store", amount)
    driver = tiered_side.CountingDriver(open_driver((tmp_path / "tier").as_uri()))
    shape: dict[str, Any] = {
        "tiered_store_index_file_max_hash_slot_num": amount.slots,
        "tiered_store_index_file_max_index_num": amount.capacity,
    }
    with TieredStore.open(
        tmp_path / "store", tier=(tmp_path / "tier").as_uri(), driver=driver, background=False,
        tier_evict_on_proof=False, **shape, **tier_data.local_settings(),
    ) as store:  # fmt: skip
        tier_peer.upload_all(store, amount.messages)
    assert sorted(driver.written) == sorted(amount.chunks())
    assert len(driver.written) > 2 * tier_data.QUEUE_COUNT


def test_each_round_of_uploads_fills_a_tier_that_was_empty(filled: dict[str, str]) -> None:
    side = tier_peer.Uploads()
    side.prepare(filled)
    try:
        for _ in range(2):
            side.reset({})
            assert not list(Path(filled["tier"]).rglob("COMMIT_LOG/*"))
            assert side.run({}) == (SMALL.messages, SMALL.bytes)
            logs = [path for path in Path(filled["tier"]).rglob("COMMIT_LOG/*") if path.suffix == ""]
            assert sum(path.stat().st_size for path in logs) == SMALL.bytes
    finally:
        side.close()


def test_an_upload_that_leaves_messages_behind_is_no_round(filled: dict[str, str]) -> None:
    with tier_peer.begin_tier(filled) as store, pytest.raises(RuntimeError, match="messages in the tier, found"):
        tier_peer.upload_all(store, SMALL.messages + 1)


@pytest.fixture
def reads(filled: dict[str, str]) -> tier_peer.Reads:
    side = tier_peer.Reads()
    side.prepare(filled)
    return side


def test_cold_reads_give_every_message_a_page_or_one_by_key_and_from_the_tier(
    reads: tier_peer.Reads, filled: dict[str, str]
) -> None:
    try:
        for _ in range(2):
            reads.reset({})
            assert reads.run({"how": "sequential", "page": "32"}) == (SMALL.messages, SMALL.bytes)
        assert reads.run({"how": "random", "page": "32", "count": "5", "seed": "1"}) == (160, 160 * RECORD_BYTES)
        assert reads.run({"how": "keys", "count": "9", "seed": "1"}) == (9, 9 * RECORD_BYTES)
        assert reads._store is not None
        assert reads._store.tier.fetcher.counts().served_count >= SMALL.messages
        _check_limits(filled)
    finally:
        reads.close()


def _check_limits(filled: dict[str, str]) -> None:
    tier = Path(filled["tier"])
    with ExitStack() as stack:
        logs = tier_limits.open_logs(stack, tier)
        assert tier_limits.PlainReads(logs, SMALL).round().bytes == SMALL.bytes
        pages = tier_limits.PageReads(logs, SMALL, 32, 5).round()
        assert (pages.messages, pages.bytes) == (160, 160 * RECORD_BYTES)
        with pytest.raises(RuntimeError, match="commit logs of one file each"):
            tier_limits.PageReads(logs[1:], SMALL, 32, 5)
        (index,) = (path for path in tier.rglob("INDEX/*") if path.suffix == "")
        with index.open("rb") as file:
            keys = tier_limits.KeyReads(file.fileno(), logs, SMALL, 9).round()
        assert (keys.messages, keys.bytes) == (9, 9 * RECORD_BYTES)


def test_the_limit_of_an_upload_writes_all_of_its_bytes_and_leaves_no_file(tmp_path: Path) -> None:
    done = tier_limits.SequentialWrites(tmp_path / "written", SMALL).round()
    assert (done.messages, done.bytes) == (SMALL.messages, SMALL.bytes)
    assert not list(tmp_path.iterdir())


def test_a_rearrangement_of_the_comparison_holds_all_items(tmp_path: Path) -> None:
    directory = tmp_path / "tiered_index_file"
    directory.mkdir()
    path = upload_side.fill_index_file(directory, 250, 1_000)
    side = tier_peer.Rearrangement()
    side.prepare({"store": str(tmp_path), "begin": path.name, "slots": "250", "capacity": "1000"})
    try:
        for _ in range(2):
            side.reset({})
            assert side.run({}) == (999, 28 + 8 * 250 + 28 * 999)
            assert (directory / "compacting" / path.name).stat().st_size == 28 + 8 * 250 + 28 * 999
    finally:
        side.close()


# With the real RocketMQ


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.bench
@pytest.mark.parametrize("work", tier_works.WORKS, ids=lambda work: work.name)
def test_both_sides_of_a_tier_work_do_the_same(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_works, "LOG_BYTES", 8 << 20)
    monkeypatch.setattr(tier_works, "INDEX_ITEMS", 20_000)
    (tmp_path / "mapped").mkdir()
    (tmp_path / "disk").mkdir()
    with ExitStack() as stack:
        sides = work.opener(Place(tmp_path / "mapped", tmp_path / "disk"), stack)
        assert set(sides.rounds) == {TIERMQ, ROCKETMQ, LIMIT}
        for _ in range(2):
            done = {name: side() for name, side in sides.rounds.items()}
            assert done[TIERMQ].messages == done[ROCKETMQ].messages > 0
            assert done[TIERMQ].bytes == done[ROCKETMQ].bytes
            assert done[LIMIT].messages == pytest.approx(done[TIERMQ].messages, rel=0.15)
        if work.name == "tier_upload":
            ours, theirs = (digests(tmp_path / "disk" / side) for side in ("tiermq-tier", "rocketmq-tier"))
            assert len(ours) == 2 * tier_data.QUEUE_COUNT
            assert ours == theirs
        if work.name == "index_rearrange":
            index_files = [tmp_path / "mapped" / side / "tiered_index_file" for side in ("tiermq", "rocketmq")]
            one, other = (next((path / "compacting").iterdir()).read_bytes() for path in index_files)
            assert one == other


def digests(tier: Path) -> dict[str, str]:
    """What lies in commit logs and consume queues, by name."""
    return {
        str(path.relative_to(tier)): hashlib.sha256(path.read_bytes()).hexdigest()
        for kind in ("COMMIT_LOG", "CONSUME_QUEUE")
        for path in tier.rglob(f"{kind}/*")
        if path.suffix == ""
    }


@pytest.mark.interop
@pytest.mark.bench
def test_a_java_side_of_the_tier_that_fails_ends_although_its_pools_live(filled: dict[str, str]) -> None:
    with ExitStack() as stack:
        side = peer_process.start_rocketmq(stack, "TierRead", Path(filled["store"]) / "java")
        side.prepare(**filled)
        with pytest.raises(peer_process.PeerFailed, match="expected sequential, random or keys"):
            side.run(how="backwards")


@pytest.mark.interop
def test_java_has_the_same_names_keys_and_chance(tmp_path: Path) -> None:
    program = """
    public final class Shown {
        public static void main(String[] arguments) {
            TierData chance = new TierData(7);
            System.out.println(TierData.topic(3) + " " + TierData.key(0) + " " + TierData.key(123456789012L));
            System.out.println(chance.below(1000) + " " + chance.below(16) + " " + chance.below(1L << 31));
        }
    }
    """
    (tmp_path / "Shown.java").write_text(program, encoding="utf-8")
    source = peer_process.JAVA / "rocketmq" / "TierData.java"
    subprocess.run(["javac", "-d", str(tmp_path), str(source), str(tmp_path / "Shown.java")], check=True)
    shown = subprocess.run(["java", "-cp", str(tmp_path), "Shown"], check=True, capture_output=True, text=True).stdout
    chance = Chance(7)
    assert shown.split() == [
        tier_data.TOPICS[3], tier_data.key_of(0), tier_data.key_of(123456789012),
        *(str(chance.below(limit)) for limit in (1000, 16, 1 << 31)),
    ]  # fmt: skip
