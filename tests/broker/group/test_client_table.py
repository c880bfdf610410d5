"""Who is connected: members of groups, what they subscribe to, and who is told when that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, on_loop, running, until
from simulation.manual_clock import ManualClock
from tiermq.broker.group.client_table import ClientTable, ConsumerGroup, MessageQueue, QueueLocks
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.group.subscription import ConsumerData, Subscription
from tiermq.remoting.codes import RequestCode

A, B = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def notices(peer: Peer) -> list[str]:
    """The groups of whose changes a peer hears, as it goes on."""
    heard: list[str] = []

    def note(command: Any) -> None:
        heard.append(command.ext["consumerGroup"])

    peer.client.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, note)
    return heard


def wait_for(heard: list[str], wanted: list[str], peer: Peer) -> None:
    """Ask the broker something until the notices that it sent before have come."""
    for _ in range(1000):
        if len(heard) >= len(wanted):
            break
        peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
    assert heard == wanted


def test_members_are_notified_when_one_comes_and_when_one_goes(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as first:
        heard = notices(first)
        first.join(client_id="c1")
        wait_for(heard, ["G"], first)
        first.join(client_id="c1")
        with Peer(broker) as second:
            second.join(client_id="c2")
            assert broker.parts.clients.client_ids("G") == ["c1", "c2"]
            wait_for(heard, ["G", "G"], first)
        until(broker, lambda: broker.parts.clients.client_ids("G") == ["c1"])
        wait_for(heard, ["G", "G", "G"], first)


def test_members_are_notified_when_the_topics_change_but_not_when_a_filter_does(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        heard = notices(peer)
        peer.join()
        peer.join(expression="A", version=2)
        assert broker.parts.clients.subscription("G", "T") == Subscription("T", "A", version=2)
        peer.join(topic="U")
        assert broker.parts.clients.subscription("G", "T") is None
        wait_for(heard, ["G", "G"], peer)


@pytest.mark.parametrize("how", ["broadcasting", "group", "broker"])
def test_no_one_is_notified_where_that_is_not_wanted(tmp_path: Path, how: str) -> None:
    with running(tmp_path, notify_consumer_ids_changed_enable=how != "broker") as broker, Peer(broker) as peer:
        if how == "group":
            broker.parts.groups.put(SubscriptionGroup("G", notify_consumer_ids_changed_enable=False))
        heard = notices(peer)
        peer.join(model="BROADCASTING" if how == "broadcasting" else "CLUSTERING")
        peer.join(group="other")
        wait_for(heard, ["other"] if how != "broker" else [], peer)


def test_a_client_that_closes_its_connection_is_gone_from_every_group(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        clients = broker.parts.clients
        with Peer(broker) as peer:
            peer.join("G")
            peer.join("H")
            assert clients.producers("P") is not None
            assert sorted(clients.consumer_groups) == ["G", "H"]
            assert clients.find_producer("c1") is not None
            assert clients.find_consumer("G", "c1") is not None
            assert clients.find_consumer("G", "c2") is None
            assert clients.groups_subscribing("T") == ["G", "H"]
        until(broker, lambda: not clients.consumer_groups)
        assert clients.producers("P") is None
        assert clients.find_producer("c1") is None


def test_a_client_that_is_silent_for_too_long_is_closed(tmp_path: Path, manual_clock: ManualClock) -> None:
    settings: dict[str, Any] = {"clock": manual_clock, "channel_expired_timeout": 120_000}
    with running(tmp_path, **settings) as broker, Peer(broker) as silent, Peer(broker) as other:

        def look_later() -> int:
            """In one turn of the loop, or the broker's own look, every ten seconds, may come in between."""
            manual_clock.advance_ms(30_000)
            return broker.parts.clients.close_silent()

        silent.join(client_id="silent")
        manual_clock.advance_ms(100_000)
        other.join(client_id="other")
        assert on_loop(broker, look_later) == 1
        assert broker.parts.clients.client_ids("G") == ["other"]
        assert on_loop(broker, broker.parts.clients.close_silent) == 0


def test_a_heartbeat_of_a_connection_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        clients = broker.parts.clients
        with Peer(broker) as peer:
            peer.join()
            group = clients.consumers("G")
            assert group is not None
            (connection,) = group.clients
        until(broker, lambda: not clients.consumer_groups)
        data = ConsumerData("G", subscriptions=(Subscription("T"),))
        assert not on_loop(broker, clients.consumer_came, data, "c1", connection, 0, 0)
        on_loop(broker, clients.producer_came, "P", "c1", connection, 0, 0)
        assert (clients.consumers("G"), clients.producers("P"), clients._groups_of) == (None, None, {})


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    group = ConsumerGroup("g")
    assert group.subscribe([Subscription("T", "A", version=5)])
    assert not group.subscribe([Subscription("T", "B", version=4)])
    assert group.subscriptions["T"].expression == "A"
    assert not group.subscribe([Subscription("T", "B", version=6)])
    assert group.subscriptions["T"].expression == "B"
    assert group.subscribe([])


def test_of_many_changes_in_one_turn_of_the_loop_each_member_hears_once(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        heard = notices(peer)
        peer.join()
        wait_for(heard, ["G"], peer)
        on_loop(broker, come_and_go, broker.parts.clients, 50)
        wait_for(heard, ["G", "G"], peer)
        peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert heard == ["G", "G"]


def come_and_go(clients: ClientTable, times: int) -> None:
    """A member that is taken for another one again and again."""
    group = clients.consumers("G")
    assert group is not None
    (connection,) = group.clients
    for number in range(times):
        data = ConsumerData("G", subscriptions=tuple(group.subscriptions.values()))
        assert clients.consumer_came(data, f"c{number}x", connection, 0, 0)


def test_a_queue_has_one_holder_at_a_time(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    assert locks.lock("g", "one", [A]) == [A]
    assert locks.lock("g", "two", [A, B]) == [B]
    assert locks.lock("h", "two", [A]) == [A], "another group has locks of its own"
    assert locks.lock("g", "one", [A]) == [A], "a holder renews"


def test_a_lock_that_is_not_renewed_is_anybodys(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A])
    manual_clock.advance_ms(60_000)
    assert locks.lock("g", "two", [A]) == []
    assert locks.holds_any("g")
    manual_clock.advance_ms(1)
    assert not locks.holds_any("g")
    assert locks.lock("g", "two", [A]) == [A]
    assert locks.lock("g", "one", [A]) == []


def test_only_the_holder_lets_go(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A, B])
    locks.unlock("g", "two", [A])
    assert locks.lock("g", "two", [A]) == []
    locks.unlock("g", "one", [A])
    assert locks.lock("g", "two", [A, B]) == [A]
    locks.unlock("x", "one", [A])


def test_locks_that_are_over_are_forgotten(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A])
    manual_clock.advance_ms(40_000)
    locks.lock("g", "one", [B])
    manual_clock.advance_ms(30_000)
    assert locks.drop_expired() == 1
    assert locks.holds_any("g")
    manual_clock.advance_ms(60_000)
    assert locks.drop_expired() == 1
    assert locks.drop_expired() == 0
