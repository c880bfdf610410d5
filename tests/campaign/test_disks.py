"""Disk trouble, in small: damage in each ground, and grounds and brokers that would serve it are found out."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.disks.brokers import BrokerGround
from campaign.disks.damage import Damage, DamagePart, blank, flip, judged, vanish
from campaign.disks.far_timers import FarTimerGround
from campaign.disks.ground import Ground, Verdict
from campaign.disks.leases import LeaseGround
from campaign.disks.preload import Calls, Faults, missing_compiler
from campaign.disks.stores import StoreGround
from campaign.disks.tiers import TierGround
from campaign.disks.timers import TimerGround
from tiermq.message import crc
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.metadata.broker_lease import BrokerLease, decode_lease

GROUNDS: list[Ground] = [
    StoreGround(killed=False),
    StoreGround(killed=True),
    TierGround(cold=True),
    BrokerGround(),
    TimerGround(killed=True),
    StoreGround(killed=True, ext=True),
    FarTimerGround(),
    LeaseGround(),
]


@pytest.mark.parametrize("ground", GROUNDS, ids=lambda ground: ground.name)
def test_a_ground_without_damage_is_sound(ground: Ground, tmp_path: Path) -> None:
    expected = ground.build(tmp_path, 1)
    verdict = ground.judge(tmp_path, expected)
    assert (verdict.wrong, verdict.lost) == ([], [])


@pytest.mark.parametrize(
    "ground",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * ("tier" in each.name)) for each in GROUNDS],
)
def test_bits_that_go_bad_are_reported_or_cost_nothing(ground: Ground, tmp_path: Path) -> None:
    outcome = DamagePart("bits", "", [flip], [ground], tries=1).round(11, tmp_path)
    assert outcome.findings == []
    assert outcome.counts["bits_flipped"] >= 2


def test_files_and_sectors_that_are_gone_are_reported_or_cost_nothing(tmp_path: Path) -> None:
    ground = StoreGround(killed=False, strict=False)
    outcome = DamagePart("gone", "", [blank, vanish], [ground], tries=1).round(3, tmp_path)
    assert outcome.findings == []
    assert outcome.counts["damages"] >= 5


def forge(path: Path, _: random.Random) -> str:
    """Change the body of the first record, and its checksums with it: no store can notice."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    record = bytearray(data[:size])
    length = int.from_bytes(record[84:88], "big")
    record[88] ^= 1
    record[8:12] = crc.body_crc(bytes(record[88 : 88 + length])).to_bytes(4, "big")
    crc.seal_crc_property(record)
    path.write_bytes(record + data[size:])
    return "was forged"


def test_a_message_that_is_served_otherwise_than_it_was_put_is_found(tmp_path: Path) -> None:
    class LogAlone(StoreGround):
        def kind_of(self, path: Path) -> str:
            return "log" if path.name == "0" * 20 and path.parts[1] == "commitlog" else ""

    found = DamagePart("forged", "", [forge], [LogAlone(killed=False)], tries=1).round(1, tmp_path).findings
    assert "Damage is never served as a message." in [finding.promise for finding in found]


def test_a_timer_that_never_comes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a recovery that knows no sum, and takes every wheel for sound."""

    class NewestLog(TimerGround):
        def kind_of(self, path: Path) -> str:
            return "timer log" if path.name == f"{8192:020d}" and path.parts[1] == "timerlog" else ""

    def forget(path: Path, _: random.Random) -> str:
        data = path.read_bytes()
        path.write_bytes(data[:1024] + bytes(1024) + data[2048:])
        return "two sectors are zero"

    monkeypatch.setattr("tiermq.delivery.timer.timer_checkpoint._sound_copy", lambda _data: None)
    found = DamagePart("forgotten", "", [forget], [NewestLog(killed=False)], tries=1).round(1, tmp_path).findings
    assert any("never came" in finding.found for finding in found)


class LeaseAlone(FarTimerGround):
    def kind_of(self, path: Path) -> str:
        kind = super().kind_of(path)
        return kind if kind == "lease" else ""


def make_newer(path: Path, _: random.Random) -> str:
    """One bad bit: as if a newer TierMQ had written it, whose lease no broker would touch."""
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":3'))
    return "says that it is of version 3"


def test_a_damaged_lease_is_reported_and_costs_no_far_timer(tmp_path: Path) -> None:
    for seed, damage in enumerate([flip, blank, vanish, make_newer]):
        ground = LeaseAlone()
        outcome = DamagePart("lease", "", [damage], [ground], tries=1).round(seed, tmp_path / str(seed))
        assert outcome.findings == []
        assert outcome.counts["damages"] == 1
        assert outcome.counts["reported"] == (damage is not vanish)


def test_a_broker_that_gives_up_at_a_damaged_lease_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BrokerLease, "_decoded", lambda self, stored, _now_ms, **_: decode_lease(stored.data, self.name)
    )
    found = DamagePart("lease", "", [blank], [LeaseAlone()], tries=1).round(1, tmp_path).findings
    assert [finding.promise for finding in found] == ["What is known from elsewhere is repaired."]


@pytest.mark.parametrize("damage", [blank, vanish, make_newer])
def test_a_broker_goes_on_under_a_higher_epoch_when_the_lease_goes_bad_after_jobs(
    damage: Damage, tmp_path: Path
) -> None:
    outcome = DamagePart("lease", "", [damage], [LeaseGround()], tries=1).round(0, tmp_path)
    assert outcome.findings == []
    assert (outcome.counts["damages"], outcome.counts["reported"]) == (1, damage is not vanish)


def test_a_broker_that_asks_no_manifest_for_the_epoch_of_a_lost_lease_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.tier.metadata.broker_lease.highest_epoch", lambda *_: 0)
    monkeypatch.setattr(QueueWriter, "_acquire", lambda self, queue: self._manifests.acquire(queue))
    found = DamagePart("lease", "", [vanish], [LeaseGround()], tries=1).round(0, tmp_path).findings
    assert "What is known from elsewhere is repaired." in [finding.promise for finding in found]


def test_losses_without_a_report_are_findings() -> None:
    assert judged(Verdict(lost=["a"]), is_repaired=False) != []
    assert judged(Verdict(lost=["a"], reported=["an error"]), is_repaired=False) == []
    assert judged(Verdict(lost=["a"], reported=["an error"]), is_repaired=True) != []
    assert judged(Verdict(wrong=["a"], reported=["an error"]), is_repaired=False) != []


def test_a_bit_that_goes_bad_leaves_the_times_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" + bytes(100))
    os.utime(path, ns=(5, 7))
    assert "bit " in flip(path, random.Random(1))
    assert path.read_bytes()[:3] != b"abc"
    assert path.read_bytes()[3:] == bytes(100), "what holds nothing is left alone"
    assert path.stat().st_mtime_ns == 7


@pytest.mark.skipif(bool(missing_compiler()), reason=missing_compiler())
def test_chosen_calls_of_a_process_fail_while_they_are_asked_to(tmp_path: Path) -> None:
    faults = Faults(tmp_path, tmp_path / "store")
    program = (
        "import os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        done = os.pwrite(file, b'x' * 100, 0) if line == 'write\\n' else os.fdatasync(file)\n"
        "    except OSError as error:\n"
        "        done = error.errno\n"
        "    print(done, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store-file")]
    environment = {**os.environ, **faults.environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def ask(word: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(word + "\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert (ask("write"), ask("sync")) == ("100", "None")
        faults.fail(Calls.SYNC, errno.EIO)
        assert (ask("write"), ask("sync")) == ("100", str(errno.EIO))
        faults.fail(Calls.SHORT, 0)
        assert ask("write") == "50"
        faults.fail(Calls.WRITE, errno.ENOSPC, every=2)
        assert sorted([ask("write"), ask("write")]) == ["100", str(errno.ENOSPC)]
        faults.heal()
        assert (ask("write"), ask("sync")) == ("100", "None")
        child.stdin.close()
    assert faults.happened >= 3
