"""How long a broker is without a master, as its producer sees it: the time between two acknowledgements.

Replicas are `tiermq serve --standby` with the times that they have by default: a lease of ten seconds. The producer
sends one message after the other, asks the name server again after each failure, and tries 50 times a second.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report
from cli.standbys import Replicas, Sending, check, messages, replicas
from servers.serving import SIZES, Serving
from tiermq import Message
from tiermq.broker.broker_config import BrokerConfig
from tiermq.config import StoreConfig
from tiermq.replication.bucket_election import LeaseTimes
from tiermq.tier.tiered_store import TieredStore
from waiting import until

TIMES = LeaseTimes()
MORE_S = 2.0
"""Beside the lease."""
COMMAND_S = 2.0
TAKEOVER_S = 5.0
TOPICS, QUEUES = 16, 8
BODY_BYTES = 1024
STORED_AT_ONCE = 2_000
UPLOADED_S = 5.0
"""After so long a message is in the tier, so that the loss of the machine loses only the last ones."""
DEFAULTS = {
    "master_lease_term": round(1000 * TIMES.term_s),
    "master_lease_renewal": round(1000 * TIMES.renew_s),
    "master_lease_margin": round(1000 * TIMES.margin_s),
    "master_lease_look": round(1000 * TIMES.look_s),
    "master_sync_interval": BrokerConfig().master_sync_interval,
    "register_name_server_period": BrokerConfig().register_name_server_period,
}
"""Not those that tests use."""


@dataclass(frozen=True, slots=True)
class Failovers:
    """Seconds between two acknowledgements: after kill -9, and at a promotion by command."""

    killed_s: list[float]
    promoted_s: list[float]


def measure_failover(directory: Path, rounds: int) -> Failovers:
    """Raises AssertionError when a message was lost."""
    killed_s, promoted_s = [], []
    with replicas(directory, "--lease", f"file://{directory}/lease", **DEFAULTS) as cluster:
        master, other = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.is_master(master))
        with Sending(cluster) as sending:
            sending.more()
            for _ in range(rounds):
                until(lambda: cluster.in_sync(master) == [1, 2])
                promoted_s.append(_gap_s(sending, lambda: _promote(cluster, other)))
                until(lambda: cluster.in_sync(other) == [1, 2])
                killed_s.append(_gap_s(sending, other.kill))
                other.start()
        until(lambda: cluster.is_master(master))
        check(sending, messages(master.address))
    return Failovers(killed_s, promoted_s)


def _promote(cluster: Replicas, replica: Serving) -> None:
    cluster.run("broker", "promote", replica.address)


def _gap_s(sending: Sending, do: Callable[[], None]) -> float:
    """The longest time without an acknowledgement from when that is done on, until there have been some again."""
    sending.more(5)
    before = len(sending.gaps_s)
    do()
    sending.more(5)
    return max(sending.gaps_s[before:])


def add_failover_to(made: Report, measured: Failovers) -> None:
    for name, found_s, allowed_s in (
        ("failover_allowed_vs_longest", measured.killed_s, TIMES.term_s + MORE_S),
        ("promotion_allowed_vs_longest", measured.promoted_s, COMMAND_S),
    ):
        made.ratios[name] = round(allowed_s / max(found_s), 4)
        for reported, value in (("p50", sorted(found_s)[len(found_s) // 2]), ("most", max(found_s))):
            made.rates[f"{name.partition('_')[0]}_{reported}_s"] = round(value, 3)
    made.environment |= {"failovers": len(measured.killed_s), "lease_s": TIMES.term_s}


@dataclass(frozen=True, slots=True)
class Takeovers:
    """Seconds from the promotion of an empty machine to its first acknowledged send, and from the start of its process
    to when it waits for a role; bytes of messages in the log and in the tier of the master that is lost.
    """

    promoted_s: list[float]
    started_s: list[float]
    messages: int
    log_bytes: int
    tier_bytes: int


def measure_takeover(directory: Path, size: int, rounds: int) -> Takeovers:
    """Each round another empty machine takes over, once the lease of the one before is over."""
    tier = f"file://{directory}/tier"
    sizes = {name: getattr(StoreConfig(), name) for name in SIZES}
    count = _fill(directory / "m0", tier, size)
    log_bytes, tier_bytes = (_bytes_below(directory / name) for name in ("m0/commitlog", "tier"))
    promoted_s, started_s = [], []
    quick = {"tiered_store_group_commit_timeout": 1_000}
    with replicas(directory, "--tier", tier, **{**DEFAULTS, **sizes, **quick}) as cluster:
        master = cluster.start("m0")
        until(lambda: cluster.is_master(master))
        with Sending(cluster) as sending:
            sending.more()
            for number in range(1, rounds + 1):
                sending.more()
                uploaded = max(list(sending.acknowledged))
                time.sleep(UPLOADED_S)
                master.kill()
                shutil.rmtree(master.store)
                began_s = time.monotonic()
                master = cluster.start(f"m{number}")
                started_s.append(time.monotonic() - began_s)
                # From its first look on it waits for a term of the lease.
                time.sleep(TIMES.term_s + 2 * TIMES.look_s)
                acknowledged, began_s = len(sending.gaps_s), time.monotonic()
                cluster.run("broker", "promote", master.address, "--accept-loss")
                until(lambda: len(sending.gaps_s) > acknowledged)  # noqa: B023
                promoted_s.append(time.monotonic() - began_s)
                assert len(messages(master.address)) > uploaded, "what had reached the tier is there"
            sending.more()
        found = messages(master.address)
        assert sorted(found) == list(range(len(found))), "offsets are unbroken"
        # Offsets of messages that were lost with a machine are given to others.
        kept = {offset: body for offset, body in sending.acknowledged.items() if offset in found}
        assert kept == {offset: found[offset] for offset in kept}
    return Takeovers(promoted_s, started_s, count, log_bytes, tier_bytes)


def _fill(store: Path, tier: str, size: int) -> int:
    """A store of so many bytes, wholly in the tier; how many messages."""
    count, body, topics = size // BODY_BYTES, b"h" * BODY_BYTES, [f"History{number}" for number in range(TOPICS)]
    with TieredStore.open(store, tier=tier, broker_name="b1") as filled:
        for start in range(0, count, STORED_AT_ONCE):
            filled.put_many(
                Message(topics[number % TOPICS], body, number // TOPICS % QUEUES, keys=[f"k{number}"])
                for number in range(start, min(count, start + STORED_AT_ONCE))
            )
        filled.flush_to_tier()
    return count


def _bytes_below(path: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in path.rglob("*") if file.is_file())


def add_takeover_to(made: Report, measured: Takeovers) -> None:
    made.ratios["takeover_allowed_vs_longest"] = round(TAKEOVER_S / max(measured.promoted_s), 4)
    made.rates["takeover_from_promotion_most_s"] = round(max(measured.promoted_s), 3)
    made.rates["takeover_process_start_most_s"] = round(max(measured.started_s), 3)
    made.environment |= {
        "takeover_messages": measured.messages, "takeover_log_bytes": measured.log_bytes,
        "takeover_tier_bytes": measured.tier_bytes,
    }  # fmt: skip
