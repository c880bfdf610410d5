"""The route table: the rules of registration one by one, and random histories against a model."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from namesrv.route_model import RouteModel
from simulation.manual_clock import ManualClock
from tiermq.errors import RequestRefused
from tiermq.namesrv.route_table import (
    BROKER_TIMEOUT_MS,
    TOPICS_AT_ONCE,
    BrokerData,
    QueueData,
    Registered,
    Registration,
    RouteTable,
    TopicRoute,
    queues_of_topics,
)
from tiermq.namesrv.topic_config import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from tiermq.remoting.json_dialect import decode_body

A = "10.0.0.1:10911"
B = "10.0.0.2:10911"
SYSTEM = (TopicConfig("TBW102", 8, 8, 7), TopicConfig("SELF_TEST_TOPIC", 1, 1))
ROUTE = TopicRoute(
    (BrokerData("DefaultCluster", "broker-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}),),
    (QueueData("broker-a", 4, 4, 6),),
)


def reported(
    *topics: TopicConfig,
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = A,
    cluster: str = "C",
    version: int = 1,
    state: int = 0,
    acting: bool | None = None,
    timeout_ms: int = BROKER_TIMEOUT_MS,
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=f"{address}-ha",
        topics=queues_of_topics(name, topics or SYSTEM),
        data_version=DataVersion(version, version, state),
        acting_master=acting,
        timeout_ms=timeout_ms,
    )


@pytest.fixture
def table(manual_clock: ManualClock) -> RouteTable:
    return RouteTable(manual_clock)


def queues_of(table: RouteTable, topic: str) -> dict[str, tuple[int, int]]:
    route = table.route(topic)
    return {} if route is None else {queue.broker_name: (queue.write_queues, queue.perm) for queue in route.queues}


def addresses_of(table: RouteTable, name: str = "broker-a") -> dict[int, str]:
    broker = table.broker(name)
    return {} if broker is None else dict(broker.addresses)


def test_a_first_registration_with_exactly_one_topic_is_refused_and_leaves_nothing(table: RouteTable) -> None:
    with pytest.raises(RequestRefused, match="whole table first"):
        table.register(reported(TopicConfig("orders")))
    assert table.topics() == []
    assert table.clusters() == {}
    table.register(reported())
    with pytest.raises(RequestRefused):
        table.register(reported(TopicConfig("orders"), broker_id=1, address=B))
    assert addresses_of(table) == {0: A}


def test_an_incremental_registration_adds_a_topic_and_keeps_the_others(table: RouteTable) -> None:
    table.register(reported())
    table.register(reported(TopicConfig("orders", 4, 4), version=2))
    assert table.topics() == ["SELF_TEST_TOPIC", "TBW102", "orders"]
    assert queues_of(table, "orders") == {"broker-a": (4, 6)}
    assert table.data_version("C", "broker-a", A) == DataVersion(2, 2)


def test_topics_absent_from_a_later_registration_go_only_where_that_is_asked_for(manual_clock: ManualClock) -> None:
    for wanted in (False, True):
        table = RouteTable(manual_clock, delete_missing_topics=wanted)
        table.register(reported(*SYSTEM, TopicConfig("orders")))
        table.register(reported(version=2))
        assert ("orders" in table.topics()) is not wanted


def test_queue_data_change_only_with_the_version_of_the_table(table: RouteTable) -> None:
    table.register(reported(*SYSTEM, TopicConfig("orders", 4, 4)))
    table.register(reported(*SYSTEM, TopicConfig("orders", 8, 8)))
    assert queues_of(table, "orders") == {"broker-a": (4, 6)}
    table.register(reported(*SYSTEM, TopicConfig("orders", 8, 8), version=2))
    assert queues_of(table, "orders") == {"broker-a": (8, 6)}


def test_a_slave_learns_of_its_master_and_changes_no_queue_data(table: RouteTable) -> None:
    assert table.register(reported(broker_id=1, address=B)) == Registered()
    assert table.topics() == []
    assert table.register(reported(*SYSTEM, TopicConfig("orders", 4, 4))) == Registered()
    slave = reported(*SYSTEM, TopicConfig("orders", 9, 9), broker_id=1, address=B, version=5)
    assert table.register(slave) == Registered(True, A, f"{A}-ha")
    assert queues_of(table, "orders") == {"broker-a": (4, 6)}
    assert addresses_of(table) == {0: A, 1: B}


def test_an_address_that_comes_back_with_another_id_loses_the_old_one(table: RouteTable) -> None:
    table.register(reported(broker_id=1, address=A))
    table.register(reported(broker_id=0, address=A))
    assert addresses_of(table) == {0: A}


def test_a_higher_state_version_keeps_its_place_against_another_address(table: RouteTable) -> None:
    table.register(reported(state=2))
    assert not table.register(reported(address=B, state=1)).accepted
    assert addresses_of(table) == {0: A}
    assert table.register(reported(address=B, state=2)).accepted
    assert addresses_of(table) == {0: B}
    assert not table.heartbeat("C", "broker-a", A), "the address that was replaced is not known any more"


def test_a_silent_broker_is_dropped_after_its_own_timeout_and_not_before(
    table: RouteTable, manual_clock: ManualClock
) -> None:
    table.register(reported(), "channel-1")
    table.register(reported(name="broker-b", address=B, timeout_ms=10_000), "channel-2")
    manual_clock.advance_ms(10_000)
    assert table.expire() == []
    manual_clock.advance_ms(1)
    assert table.expire() == [("broker-b", B, "channel-2")]
    assert table.heartbeat("C", "broker-a", A)
    manual_clock.advance_ms(BROKER_TIMEOUT_MS)
    assert table.expire() == []
    manual_clock.advance_ms(1)
    assert table.expire() == [("broker-a", A, "channel-1")]
    assert table.topics() == []
    assert table.clusters() == {}


def test_a_closed_channel_takes_its_brokers_with_it_but_not_one_that_came_back_over_another(table: RouteTable) -> None:
    table.register(reported(), "old")
    table.register(reported(name="broker-b", address=B), "old")
    table.register(reported(), "new")
    assert table.channel_closed("old") == [("broker-b", B)]
    assert table.clusters() == {"C": ["broker-a"]}
    assert table.channel_closed("old") == []
    assert table.channel_closed("new") == [("broker-a", A)]
    assert table.route("TBW102") is None


def test_wiped_permissions_stay_wiped_until_the_broker_changes_its_table(table: RouteTable) -> None:
    table.register(reported())
    assert table.wipe_write_permission("broker-a") == 2
    table.register(reported())
    assert queues_of(table, "TBW102") == {"broker-a": (8, 5)}
    for _ in table.permission_steps("broker-a", to=PERM_READ | PERM_WRITE):
        pass
    assert queues_of(table, "TBW102") == {"broker-a": (8, 6)}
    assert table.wipe_write_permission("unknown") == 0
    table.wipe_write_permission("broker-a")
    table.register(reported(version=2))
    assert queues_of(table, "TBW102") == {"broker-a": (8, 7)}


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    table.register(reported())
    table.register(reported(name="broker-b", address=B, cluster="D"))
    assert table.topics_of_cluster("D") == ["SELF_TEST_TOPIC", "TBW102"]
    table.delete_topic("TBW102", "D")
    assert queues_of(table, "TBW102").keys() == {"broker-a"}
    table.delete_topic("TBW102")
    table.delete_topic("TBW102")
    assert table.route("TBW102") is None


def test_a_topic_is_registered_at_known_brokers_only(table: RouteTable) -> None:
    table.register(reported())
    table.register_topic("orders", [QueueData("broker-a", 4, 4, 6), QueueData("unknown", 4, 4, 6)])
    assert queues_of(table, "orders") == {"broker-a": (4, 6)}
    table.register_topic("ghost", [QueueData("unknown", 4, 4, 6)])
    assert table.route("ghost") is None


def test_a_slave_that_acts_for_a_lost_master_is_offered_for_reading_only(manual_clock: ManualClock) -> None:
    table = RouteTable(manual_clock, support_acting_master=True)
    table.register(reported(*SYSTEM, TopicConfig("orders"), acting=True))
    table.register(reported(*SYSTEM, TopicConfig("orders"), acting=True, broker_id=2, address=B))
    assert table.unregister("broker-a", A)
    route = table.route("orders")
    assert route is not None
    assert route.brokers[0].addresses == {0: B}
    assert not route.queues[0].is_writable
    table.register(reported(*SYSTEM, TopicConfig("orders"), acting=True))
    assert addresses_of(table) == {0: A, 2: B}
    assert queues_of(table, "orders") == {"broker-a": (16, 6)}


def test_a_broker_that_moves_to_another_cluster_is_in_the_new_one_only(table: RouteTable) -> None:
    table.register(reported())
    table.register(reported(cluster="D"))
    assert table.clusters() == {"D": ["broker-a"]}
    assert table.unregister("broker-a", A)
    assert table.clusters() == {}


@pytest.mark.parametrize(
    "bad",
    [
        reported(name=" "),
        reported(address=""),
        reported(cluster=""),
        reported(broker_id=-1),
        reported(timeout_ms=0),
    ],
)
def test_a_registration_of_no_use_is_refused(table: RouteTable, bad: Registration) -> None:
    with pytest.raises(RequestRefused):
        table.register(bad)
    assert table.brokers() == []


NAMES = st.sampled_from(["a", "b"])
ADDRESSES = st.sampled_from(["x:1", "y:1", "z:1"])
TOPICS = ["t0", "t1", "t2"]
CONFIGS = st.dictionaries(st.sampled_from(TOPICS), st.tuples(st.integers(1, 4), st.sampled_from([4, 6])), max_size=3)


MANY = tuple(TopicConfig(f"t{each:05}", 4, 4) for each in range(3 * TOPICS_AT_ONCE))


def perms(table: RouteTable) -> set[int]:
    return {perm for topic in table.topics() for _, perm in queues_of(table, topic).values()}


def test_permissions_of_many_topics_are_changed_in_steps(table: RouteTable) -> None:
    table.register(reported(*MANY))
    steps = table.permission_steps("broker-a", clear=PERM_WRITE)
    next(steps)
    assert perms(table) == {PERM_READ, PERM_READ | PERM_WRITE}
    table.delete_topic("t02999")
    assert len(list(steps)) == 3
    assert perms(table) == {PERM_READ}


@pytest.mark.parametrize("hurry", [1, 2])
def test_of_two_changes_of_permissions_the_later_wins_if_slower_too(table: RouteTable, hurry: int) -> None:
    table.register(reported(*MANY))
    wiping = table.permission_steps("broker-a", clear=PERM_WRITE)
    next(wiping)
    giving = table.permission_steps("broker-a", to=PERM_READ | PERM_WRITE)
    counts = []
    under_way = [wiping, *[giving] * hurry]
    while under_way:
        for each in list(under_way):
            try:
                next(each)
            except StopIteration as done:
                counts.extend([done.value] if done.value is not None else [])
                under_way = [other for other in under_way if other is not each]
    assert counts == [len(MANY), len(MANY)]
    assert perms(table) == {PERM_READ | PERM_WRITE}


def test_permissions_are_changed_whole_though_the_one_who_asked_goes(table: RouteTable) -> None:
    table.register(reported(*MANY))
    steps = table.permission_steps("broker-a", clear=PERM_WRITE)
    next(steps)
    steps.close()
    assert perms(table) == {PERM_READ}


def test_a_registration_comes_after_permissions_that_are_being_changed(table: RouteTable) -> None:
    table.register(reported(*MANY))
    steps = table.permission_steps("broker-a", clear=PERM_WRITE)
    next(steps)
    table.register(reported(*MANY, version=2))
    assert [None for _ in steps] == []
    assert perms(table) == {PERM_READ | PERM_WRITE}


def test_topics_that_are_no_longer_named_go_with_the_last_part_of_a_registration(manual_clock: ManualClock) -> None:
    table = RouteTable(manual_clock, delete_missing_topics=True)
    table.register(reported(*MANY))
    whole = reported(*MANY[1:], version=2)
    table.register(replace(whole, topics=queues_of_topics("broker-a", MANY[1:3])), is_whole=False)
    assert len(table.topics()) == len(MANY)
    table.add_topics(whole, queues_of_topics("broker-a", MANY[3:]), is_changed=True)
    table.drop_missing_topics(whole)
    assert table.topics() == [each.name for each in MANY[1:]]


class Histories(RuleBasedStateMachine):
    """Whatever happens in whatever order, the table and the model tell the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.table = RouteTable(self.clock)
        self.model = RouteModel()

    @rule(
        name=NAMES,
        broker_id=st.integers(0, 2),
        address=ADDRESSES,
        configs=CONFIGS,
        version=st.integers(0, 2),
        state=st.integers(0, 1),
        channel=st.integers(0, 2),
        timeout_ms=st.sampled_from([1_000, 2_000]),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        configs: dict[str, tuple[int, int]],
        version: int,
        state: int,
        channel: int,
        timeout_ms: int,
    ) -> None:
        topics = tuple(TopicConfig(topic, count, count, perm) for topic, (count, perm) in configs.items())
        registration = Registration(
            cluster="C",
            broker_name=name,
            broker_id=broker_id,
            address=address,
            topics=queues_of_topics(name, topics),
            data_version=DataVersion(version, 0, state),
            timeout_ms=timeout_ms,
        )
        expected = self.model.register(registration, channel, self.clock.now_ms())
        try:
            found = "accepted" if self.table.register(registration, channel).accepted else "outranked"
        except RequestRefused:
            found = "refused"
        assert found == expected

    @rule(name=NAMES, address=ADDRESSES)
    def unregister(self, name: str, address: str) -> None:
        gone = [each for each in self.model.present if (each.name, each.address) == (name, address)]
        assert self.table.unregister(name, address) == bool(gone)
        self.model.leave(gone)

    @rule(name=NAMES, address=ADDRESSES, cluster=st.sampled_from(["C", "D"]))
    def heartbeat(self, name: str, address: str, cluster: str) -> None:
        self.table.heartbeat(cluster, name, address)
        self.model.heartbeat(name, address, cluster, self.clock.now_ms())

    @rule(delta_ms=st.sampled_from([500, 1_000, 1_001]))
    def time_goes_on(self, delta_ms: int) -> None:
        self.clock.advance_ms(delta_ms)
        expected = self.model.expired(self.clock.now_ms())
        self.model.leave(expected)
        assert {each[:2] for each in self.table.expire()} == {(each.name, each.address) for each in expected}

    @rule(channel=st.integers(0, 2))
    def a_channel_closes(self, channel: int) -> None:
        gone = [each for each in self.model.present if each.channel == channel]
        self.model.leave(gone)
        assert set(self.table.channel_closed(channel)) == {(each.name, each.address) for each in gone}

    @rule(name=NAMES)
    def writing_is_forbidden(self, name: str) -> None:
        self.table.wipe_write_permission(name)
        for each in self.model.served:
            each.perm &= ~2 if each.name == name else ~0

    @rule(topic=st.sampled_from(TOPICS))
    def a_topic_is_deleted(self, topic: str) -> None:
        self.table.delete_topic(topic)
        self.model.served = [each for each in self.model.served if each.topic != topic]

    @invariant()
    def both_tell_the_same(self) -> None:
        for topic in TOPICS:
            route = self.table.route(topic)
            found = {}
            if route is not None:
                queues = {queue.broker_name: queue for queue in route.queues}
                assert queues.keys() == {broker.broker_name for broker in route.brokers}
                found = {
                    broker.broker_name: (
                        broker.addresses,
                        queues[broker.broker_name].write_queues,
                        queues[broker.broker_name].perm,
                    )
                    for broker in route.brokers
                }
            assert found == self.model.route(topic)
        assert self.table.topics() == sorted({each.topic for each in self.model.served})
        names = sorted({each.name for each in self.model.present})
        assert self.table.clusters() == ({"C": names} if names else {})
        for presence in self.model.present:
            assert self.table.data_version("C", presence.name, presence.address) == presence.version


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25)


def test_a_route_is_the_text_that_rocketmq_s_name_server_writes() -> None:
    assert ROUTE.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_old_clients_get_broker_ids_without_quotes() -> None:
    assert ROUTE.encode(standard_json=False) == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


TEXT = st.text(max_size=8) | st.just('"brokerDatas":[]') | st.just("{0:1}")


@given(TEXT, TEXT, TEXT, TEXT)
def test_both_dialects_say_the_same_whatever_the_names(name: str, cluster: str, address: str, order: str) -> None:
    route = TopicRoute(
        (BrokerData(cluster, name, {0: address}, True, order), BrokerData(cluster, "b", {3: address})),
        (QueueData(name, 1, 2, 6, 1),),
        {address: (order,)},
        order,
    )
    standard = route.encode()
    assert standard.isascii()
    if not any(0xD800 <= ord(each) < 0xE000 for each in name + cluster + address + order):
        assert decode_body(route.encode(standard_json=False)) == json.loads(standard)


def test_the_lowest_id_takes_the_place_of_a_master_that_is_gone() -> None:
    broker = BrokerData("C", "b", {2: "two", 5: "five"}, acting_master=True)
    assert broker.with_acting_master().addresses == {0: "two", 5: "five"}


def test_queue_data_read_back_and_come_from_a_topic() -> None:
    queue = QueueData.of_topic("b", TopicConfig("t", 3, 4, 6, 1))
    assert queue == QueueData("b", 3, 4, 6, 1)
    assert QueueData.from_json(queue.to_json()) == queue
    assert queue.is_writable
    assert not QueueData("b", 1, 1, 4).is_writable


@pytest.mark.parametrize("bad", [None, [], {}, {"brokerName": ""}, {"brokerName": "b", "perm": "x"}])
def test_what_is_no_queue_data_is_refused(bad: Any) -> None:
    with pytest.raises(RequestRefused):
        QueueData.from_json(bad)


# Many topics


def test_topics_with_the_same_queues_keep_no_value_each_for_the_collector_to_walk_over(table: RouteTable) -> None:
    count = 20_000
    gc.collect()
    before = len(gc.get_objects())
    table.register(reported(*(TopicConfig(f"t{each}", 4, 4) for each in range(count))))
    gc.collect()
    assert len(gc.get_objects()) - before < count / 10
    table.wipe_write_permission("broker-a")
    gc.collect()
    assert len(gc.get_objects()) - before < count / 10
    assert queues_of(table, "t7") == {"broker-a": (4, PERM_READ)}


def test_a_broker_with_many_topics_is_forgotten_in_steps_and_routed_to_by_none_of_them(table: RouteTable) -> None:
    names = [f"t{each}" for each in range(3 * TOPICS_AT_ONCE)]
    table.register(reported(*map(TopicConfig, names)))
    table.register(reported(*SYSTEM, name="broker-b", address=B))
    assert table.unregister("broker-a", A)
    assert 0 < sum(each in table.topics() for each in names) < len(names)
    assert [each for each in (*names, "TBW102") if queues_of(table, each)] == ["TBW102"]
    table.delete_topic(names[0])
    table.wipe_write_permission("broker-a")
    while table.sweep():
        pass
    assert table.topics() == sorted(each.name for each in SYSTEM)


def test_a_broker_that_comes_back_before_it_is_forgotten_keeps_what_it_registers(table: RouteTable) -> None:
    names = [f"t{each}" for each in range(3 * TOPICS_AT_ONCE)]
    table.register(reported(*map(TopicConfig, names)))
    table.unregister("broker-a", A)
    table.register(reported(*map(TopicConfig, names[::3]), version=2))
    assert [each for each in names if queues_of(table, each)] == names[::3]
    while table.sweep():
        pass
    assert sorted(table.topics()) == sorted(names[::3])
    table.unregister("broker-a", A)
    while table.sweep():
        pass
    assert table.topics() == []
