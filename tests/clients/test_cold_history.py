"""A client that others wrote reads history that is in the tier, through `tiermq serve`, and does not notice."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from clients.conftest import QUEUES, made_store
from clients.environments import ForeignClient
from servers.serving import SIZES, Serving
from tiermq import Message
from tiermq.tier.tiered_store import TieredStore

pytestmark = pytest.mark.xdist_group("third-party-clients")

TOPIC = "Orders-0"
MESSAGES = 400


def served_by_the_tier(broker: Serving) -> int:
    """How many messages the broker has given from its tier so far."""
    with urllib.request.urlopen(f"http://{broker.ready['metrics']}/metrics") as page:
        text = page.read().decode()
    found = re.findall(rf'^rocketmq_tiered_store_messages_out_total{{.*topic="{TOPIC}".*}} (\S+)$', text, re.MULTILINE)
    return round(sum(float(value) for value in found))


def test_everything_that_a_client_receives_comes_from_the_tier(cpp_client: ForeignClient, tmp_path: Path) -> None:
    store, tier = made_store(tmp_path), f"file://{tmp_path}/tier"
    with TieredStore.open(store, tier=tier, broker_name="b1", **SIZES) as filled:
        for number in range(MESSAGES):
            assert filled.put(Message(TOPIC, b"past %d" % number, number % QUEUES)).ok
        filled.flush_to_tier()
    words = ("--tier", tier, "--metrics-port", "0")
    with Serving(store, *words, tiered_storage_level="FORCE") as broker:
        place = {"nameServer": broker.name_server, "topic": TOPIC}
        got = cpp_client.run(tmp_path, **place, group="consumers", receive=MESSAGES)
        bodies = [event["received"]["body"] for event in got]
        assert sorted(bodies) == sorted(f"past {number}" for number in range(MESSAGES))
        assert served_by_the_tier(broker) >= MESSAGES
