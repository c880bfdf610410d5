"""`tiermq serve` with a tier is killed (kill -9) while tiered timers come and go, and loses its disk in the end."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, timers_of
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.tier.driver.tier_url import open_driver
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1200)]  # Its timers are due in real time.

HORIZON_MS = 4_000


def send(client: BlockingClient, number: int, due_ms: int) -> bool:
    """Whether it was acknowledged."""
    properties = f"UNIQ_KEY\x01K{number}\x02WAIT\x01true\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties}
    ext |= {"j": "0", "k": "false", "m": "false"}
    return client.request(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=ext, body=f"{number}".encode())).code == 0


def delivered(client: BlockingClient) -> set[int]:
    found: set[int] = set()
    offset = 0
    while True:
        ext = {"consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": "0", "queueOffset": str(offset)}
        ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        ext |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found |= {int(message.body) for message in decode_records(bytes(answer.body))}
        offset = int(answer.ext["nextBeginOffset"])


def connected(broker: Serving) -> BlockingClient:
    host, _, port = broker.address.partition(":")
    return BlockingClient(host, int(port), timeout_s=60)


def in_tier(url: str, due_ms: int) -> int:
    """How many timers wait in the tier for that time."""
    driver = open_driver(url)
    found = [timer for listing in discover_timers(driver) for timer in timers_of(driver, listing, due_ms - 2_000)]
    driver.close()
    return len(found)


def test_far_timers_survive_kills_and_the_loss_of_the_disk(tmp_path: Path) -> None:
    chance = random.Random(5)
    tier = (tmp_path / "tier").as_uri()
    settings = {"far_timer_horizon": HORIZON_MS, "timer_flush_interval_ms": 100, "tiered_store_group_commit": False}
    broker = Serving(tmp_path / "store", "--tier", tier, **settings)
    acknowledged: set[int] = set()
    number = 0
    try:
        for _ in range(4):
            broker.start()
            with connected(broker) as client:
                for _ in range(chance.randrange(20, 60)):
                    due_ms = time.time_ns() // 1_000_000 + HORIZON_MS + chance.randrange(1_000, 12_000)
                    try:
                        if send(client, number, due_ms):
                            acknowledged.add(number)
                    except RemotingError:
                        break
                    number += 1
            broker.kill()
        broker.start()
        with connected(broker) as client:
            far_ms = time.time_ns() // 1_000_000 + 45_000
            for last in range(10_000, 10_020):
                assert send(client, last, far_ms)
            until(lambda: acknowledged <= delivered(client))
            until(lambda: in_tier(tier, far_ms) >= 20)
        broker.kill()
        shutil.rmtree(tmp_path / "store")
        reported = CliRunner().invoke(cli, ["tier", "restore", tier, "--store", str(tmp_path / "store")])
        assert reported.exit_code == 0, reported.output
        # The same directory, so that the lease of the process that was killed is its own.
        broker.start()
        with connected(broker) as client:
            until(lambda: set(range(10_000, 10_020)) <= delivered(client))
            assert time.time_ns() // 1_000_000 >= far_ms
    finally:
        broker.kill()
