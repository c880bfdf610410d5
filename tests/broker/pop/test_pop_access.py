"""Copies that POP gives back are read with SUB of their group and topic, whatever the retry topic's name looks like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from broker.consuming import bodies_of, put, running
from broker.pop.pop_peer import MINUTE_MS, PopPeer, revive
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.permissions import AccessTable, Credentials

ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "the secret of root"
admin = true
[[accounts]]
accessKey = "owner"
secretKey = "the secret of owner"
topicPerms = ["secret=SUB"]
groupPerms = ["a_b=SUB", "reads=SUB"]
[[accounts]]
accessKey = "namesake"
secretKey = "the secret of namesake"
groupPerms = ["a_b_secret=SUB", "another=SUB"]
"""
SHARED = "%RETRY%a_b_secret"
POPPED = {"consumerGroup": "a_b", "topic": "secret"}


@contextmanager
def peers(path: Path, clock: ManualClock) -> Iterator[tuple[Broker, dict[str, PopPeer]]]:
    """Group a_b popped a message of topic secret, and it came back. The group a_b_secret has a retry of its own."""
    accounts = path / "acl.toml"
    accounts.write_text(ACCOUNTS)
    with running(path, clock=clock, acl=AccessTable.load(accounts)) as broker, ExitStack() as stack:
        broker.parts.topics.put(TopicConfig("secret", 1, 1))
        for group in ("a_b", "a_b_secret", "another", "reads"):
            broker.parts.groups.find_or_make(group)
        made = {}
        for name in ("root", "owner", "namesake"):
            made[name] = stack.enter_context(PopPeer(broker))
            made[name].client.close()
            signed = Credentials(name, f"the secret of {name}")
            made[name].client = BlockingClient("127.0.0.1", broker.port, credentials=signed, timeout_s=60)
        put(broker, "top secret", topic="secret", keys="k1")
        assert [got.body for got in made["owner"].pop(**POPPED)] == ["top secret"]
        clock.advance_ms(MINUTE_MS)
        revive(broker)
        put(broker, "own retry", topic=SHARED, keys="k1")
        broker.parts.local.dispatch_now()
        yield broker, made


def read_by_every_request(broker: Broker, peer: PopPeer, group: str) -> dict[str, list[str]]:
    """What an account gets of the shared retry topic, by request."""
    own = {"consumerGroup": group, "topic": SHARED}
    plain = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG"}
    asked: dict[str, Any] = {"topic": SHARED, "key": "k1", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    viewed = [
        bodies_of(answer)
        for each in broker.parts.local.get(SHARED, 0, 0).messages
        if (answer := peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=each.physical_offset)).code == 0
    ]
    return {
        "pull": bodies_of(peer.pull(0, **own, **plain)),
        "lite pull": bodies_of(peer.pull(0, code=int(RequestCode.LITE_PULL_MESSAGE), **own, **plain)),
        "query": bodies_of(peer.ask(RequestCode.QUERY_MESSAGE, **asked)),
        "view": [body for each in viewed for body in each],
        "pop": [got.body for got in peer.pop(**own)],
    }


@pytest.mark.parametrize("group", ["a_b_secret", "another"])
def test_no_request_reads_another_group_s_copy_by_a_retry_topic_of_the_same_name(
    tmp_path: Path, manual_clock: ManualClock, group: str
) -> None:
    with peers(tmp_path, manual_clock) as (broker, made):
        read = read_by_every_request(broker, made["namesake"], group)
        assert all(bodies == ["own retry"] for bodies in read.values()), read


def test_the_copy_s_own_account_and_administrators_read_it(tmp_path: Path, manual_clock: ManualClock) -> None:
    with peers(tmp_path, manual_clock) as (broker, made):
        read = read_by_every_request(broker, made["root"], "any")
        both = ["top secret", "own retry"]
        assert all(sorted(bodies) == sorted(both) for bodies in read.values()), read
        assert "top secret" in read_by_every_request(broker, made["owner"], "reads")["view"]
        assert [got.body for got in made["owner"].pop(**POPPED)] == ["top secret"]


def test_another_group_s_copy_is_not_sent_back_to_an_account_s_own_group(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with peers(tmp_path, manual_clock) as (broker, made):
        copy, own = broker.parts.local.get(SHARED, 0, 0).messages
        asked: dict[str, Any] = {"group": "another", "delayLevel": -1}
        end = broker.parts.local.max_physical_offset
        refused = made["namesake"].ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=copy.physical_offset, **asked)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "came back to a group" in str(refused.remark)
        assert broker.parts.local.max_physical_offset == end
        taken = made["namesake"].ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=own.physical_offset, **asked)
        assert taken.code == 0


def test_a_client_cannot_pass_off_a_message_as_a_copy_for_another_group(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with peers(tmp_path, manual_clock) as (broker, made):
        forged = send_command(SHARED, b"forged", properties="TIERMQ_GIVEN_BACK\x01a_b secret 0 0 0 0\x02")
        assert made["namesake"].client.request(forged).code == 0
        broker.parts.local.dispatch_now()
        assert broker.parts.local.max_offset(SHARED, 0) == 3
        assert [got.body for got in made["owner"].pop(**POPPED)] == ["top secret"]
