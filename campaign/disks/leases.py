"""The ground of a lease: a tier that its broker and jobs wrote in turns, of which the broker knows nothing.

What the lease said is known from elsewhere: who is at work shows within a term, and the epoch stands in the manifests.
So damage of any sort costs the broker some time, and then it copies what is put, under an epoch above all others.
"""

from __future__ import annotations

import random
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from campaign.disks.ground import Place, Verdict, read_queue
from pipeline.lost_lease import MESSAGES, QUEUES, TOPIC, LostLease, epochs
from tiermq.tier.driver.tier_url import open_driver

JOBS_MAX = 3


class Contents(NamedTuple):
    sent: int
    epoch_max: int


class LeaseGround:
    """See the module."""

    name = "lease of a tier that jobs wrote"
    repaired = frozenset({"lease"})
    unsummed = frozenset[str]()

    def build(self, root: Path, seed: int) -> Contents:
        world = _world(root)
        with world.open() as store:
            assert world.put(store), store.status()
        for number in range(random.Random(seed).randint(1, JOBS_MAX)):
            world.run_job(f"job {number}")
        return Contents(world.sent, max(epochs(world.driver)))

    def kind_of(self, path: Path) -> str:
        return "lease" if path.name == "lease.tiermq.json" else ""

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        world = _world(root)
        world.sent = expected.sent
        with verdict.telling("the broker"), world.open() as store:
            if not world.put_and_wait(store):
                verdict.reported.append(f"the broker copies nothing: {store.status()}")
            elif store.tier.lease.epoch <= expected.epoch_max:
                verdict.lost.append(f"an epoch above {expected.epoch_max}: found {store.tier.lease.epoch}")
        found: dict[Place, bytes] = {}
        elsewhere = LostLease(root / "elsewhere", world.driver)
        with verdict.telling("what the tier has"), elsewhere.open(restore=True) as restored:
            for queue_id in range(QUEUES):
                found |= read_queue(restored, TOPIC, queue_id, verdict, attrgetter("body"))
        numbers = range(expected.sent + MESSAGES)
        verdict.compare({(TOPIC, each % QUEUES, each // QUEUES): b"body %d" % each for each in numbers}, found)
        return verdict


def _world(root: Path) -> LostLease:
    return LostLease(root / "store", open_driver((root / "tier").as_uri()))
