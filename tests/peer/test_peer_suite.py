"""RocketMQ's own integration tests against three of our brokers: pass, fail, or not applicable with the reason.

python3 dev.py test -m peer -n0 -s            one line for each class, and the sums
python3 dev.py test -m peer -n0 -k PopOrderlyIT
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from interop.rocketmq import Unavailable
from peer.suite import PACKAGE, Jars, PeerSuite, fetch

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("peer"), pytest.mark.timeout(0)]

CLASSES = (
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.pop.BatchAckIT",
    "client.consumer.pop.NotificationIT",
    "client.consumer.pop.PopBigMessageIT",
    "client.consumer.pop.PopMessageAndForwardingIT",
    "client.consumer.pop.PopOrderlyIT",
    "client.consumer.tag.MulTagSubIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.batch.BatchSendIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "grpc.v2.ClusterGrpcIT",
    "offset.LagCalculationIT",
    "offset.OffsetResetForPopIT",
    "offset.OffsetResetIT",
    "recall.RecallWithTraceIT",
    "recall.SendAndRecallDelayMessageIT",
    "retry.PopConsumerRetryIT",
    "route.CreateAndUpdateTopicIT",
    "smoke.NormalMessageSendAndRecvIT",
    "tls.TlsIT",
    "tls.TlsMix2IT",
    "tls.TlsMixIT",
)
"""Those that ask brokers over the wire."""
OWN_CLASSES = ("tiermq.peer.BrokerGrpcIT",)
"""Ours: RocketMQ's tests of a proxy in local mode, LocalGrpcIT, against the gRPC port of a broker."""
IGNORED = "RocketMQ ignores its only test"
CONTAINER = "runs RocketMQ's broker container, with replicas, in the process of the test"
NOT_APPLICABLE = {
    "autoswitchrole.AutoSwitchRoleIntegrationTest": "RocketMQ's controller switches roles of brokers in the process",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT": IGNORED,
    "client.consumer.broadcast.order.OrderMsgBroadcastIT": IGNORED,
    "client.consumer.pop.PopPriorityIT": "changes settings inside the broker's process before each test",
    "client.consumer.pop.PopSubCheckIT": IGNORED,
    **{
        f"container.{name}": CONTAINER
        for name in (
            "AddAndRemoveBrokerIT",
            "BrokerFailoverIT",
            "BrokerMemberGroupIT",
            "GetMaxOffsetFromSlaveIT",
            "GetMetadataReverseIT",
            "PopSlaveActingMasterIT",
            "PullMultipleReplicasIT",
            "PushMultipleReplicasIT",
            "RebalanceLockOnSlaveIT",
            "ScheduleSlaveActingMasterIT",
            "ScheduledMessageIT",
            "SendMultipleReplicasIT",
            "SlaveBrokerIT",
            "SyncConsumerOffsetIT",
            "TransactionMessageIT",
        )
    },
    "dledger.DLedgerProduceAndConsumeIT": "a broker with DLedger in the process of the test",
    "grpc.v2.GrpcBaseIT": "holds no tests: the base of the two others",
    "grpc.v2.LocalGrpcIT": "starts a proxy in the process of the test; tiermq.peer.BrokerGrpcIT runs its tests",
    "offset.OffsetNotFoundIT": "changes requests by a hook inside the broker's process",
    "schema.SchemaTest": "compares Java classes with a file, and asks no broker",
    "statictopic.StaticTopicIT": "static topics: docs/decisions/019-static-topics.md",
}
WITHOUT: dict[str, dict[str, str]] = {
    "route.CreateAndUpdateTopicIT": {"testStaticTopicNotAffected": "docs/decisions/019-static-topics.md"},
    "offset.OffsetResetForPopIT": dict.fromkeys(
        ("testResetOffsetThenAckOldForPopOrderly", "testRestOffsetToSkipMsgForPopOrderly"),
        "looks up whether a queue is blocked inside the broker's process",
    ),
    "offset.LagCalculationIT": {"testEstimateLag": "counts the units of the broker's own consume queues"},
}
"""Methods of classes above that look inside a broker of their own process."""
_sums: Counter[str] = Counter()


@pytest.fixture(scope="session")
def jars() -> Jars:
    try:
        return fetch()
    except Unavailable as reason:
        pytest.skip(f"RocketMQ's tests are out of reach: {reason}")


@pytest.fixture(scope="module")
def suite(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerSuite]:
    with PeerSuite(jars, tmp_path_factory.mktemp("peer")) as running:
        yield running
    print(f"\nRocketMQ's own tests: {', '.join(f'{count} {what}' for what, count in sorted(_sums.items()))}")


def test_every_class_of_the_suite_is_run_or_has_a_reason(jars: Jars) -> None:
    assert jars.test_classes() == set(CLASSES) | NOT_APPLICABLE.keys()
    assert WITHOUT.keys() <= {*CLASSES, *OWN_CLASSES}


def test_every_method_of_rocketmq_s_test_of_grpc_is_run(jars: Jars) -> None:
    assert jars.test_methods(f"{PACKAGE}grpc.v2.LocalGrpcIT") == jars.test_methods(*OWN_CLASSES)


@pytest.mark.parametrize("test_class", [*CLASSES, *OWN_CLASSES, *NOT_APPLICABLE])
def test_passes_against_our_brokers(suite: PeerSuite, test_class: str) -> None:
    if (reason := NOT_APPLICABLE.get(test_class)) is not None:
        _sums["classes not applicable"] += 1
        pytest.skip(f"not applicable: {reason}")
    without = WITHOUT.get(test_class, {})
    outcome = suite.run(test_class, without)
    not_applicable = {**without, **outcome.not_applicable}
    _sums.update(passed=len(outcome.passed), failed=len(outcome.failed), ignored_by_rocketmq=len(outcome.ignored))
    _sums["not applicable"] += len(not_applicable)
    print(f"\n{test_class}: {len(outcome.passed)} passed, {len(outcome.ignored)} ignored by RocketMQ itself")
    for name, why in not_applicable.items():
        print(f"  not applicable: {name}: {why}")
    assert not (trouble := outcome.trouble()), f"{test_class}: {trouble}"
