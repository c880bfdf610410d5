"""Every command of mqadmin with words that run it, and what our broker's answer to it is called.

same answer        it prints the same of both brokers, but for ids, addresses, times and the order of lines
works              it ends well with ours; figures or settings differ, or the real one refuses it as it is started here
both refuse alike  with the same words, as both are started here
not applicable     our broker refuses it, with the sentence that is shown
no broker          it asks no broker of ours: a controller, a local file, or nobody
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tiermq.broker.admin.unserved_processor import REASONS
from tiermq.broker.replication.ha_processor import NO_CONTROLLER
from tiermq.remoting.codes import RequestCode

CLUSTER, BROKER = "DefaultCluster", "broker-a"
AT_CLUSTER, AT_BROKER = ("-c", CLUSTER), ("-b", "{address}")
ABSENT = "127.0.0.1:1"

LITE_TOPIC = (
    ("updateTopic", *AT_CLUSTER, "-t", "light", "-r", "1", "-w", "1", "-a", "+message.type=LITE"),
    ("updateSubGroup", *AT_CLUSTER, "-g", "LG", "--attributes", "+lite.bind.topic=light"),
)
"""Only a RocketMQ that has lite topics takes them; another one would have a topic less than our broker."""

# In this order: what is asked about is made first and deleted last. A command may stand twice, the last one counts.
# Those that send come after those that print messages: one that timed out is run again, and then stored twice.
COMMANDS: tuple[tuple[str, ...], ...] = (
    *LITE_TOPIC,
    ("updateTopic", *AT_CLUSTER, "-t", "orders", "-r", "2", "-w", "2"),
    ("updateTopicList", *AT_BROKER, "-f", "{home}/topics.json"),
    ("updateSubGroup", *AT_CLUSTER, "-g", "CG", "-r", "3"),
    ("updateSubGroupList", *AT_BROKER, "-f", "{home}/groups.json"),
    ("updateTopicPerm", *AT_CLUSTER, "-t", "list-1", "-p", "4"),
    ("setConsumeMode", *AT_CLUSTER, "-t", "list-2", "-g", "CG", "-m", "POP", "-q", "0"),
    ("topicList",),
    ("topicRoute", "-t", "orders"),
    ("topicStatus", "-t", "orders"),
    ("topicClusterList", "-t", "orders"),
    ("allocateMQ", "-t", "orders", "-i", "127.0.0.1@1"),
    ("clusterList",),
    ("brokerStatus", *AT_BROKER),
    ("haStatus", *AT_BROKER),
    ("getBrokerConfig", *AT_BROKER),
    ("updateBrokerConfig", *AT_BROKER, "-k", "autoCreateTopicEnable", "-v", "true"),
    ("getNamesrvConfig",),
    ("updateNamesrvConfig", "-k", "clusterTest", "-v", "false"),
    ("updateKvConfig", "-s", "NS", "-k", "key", "-v", "value"),
    ("deleteKvConfig", "-s", "NS", "-k", "key"),
    ("updateOrderConf", "-m", "put", "-t", "orders", "-v", f"{BROKER}:2"),
    ("updateOrderConf", "-m", "delete", "-t", "orders"),
    ("wipeWritePerm", "-b", BROKER),
    ("addWritePerm", "-b", BROKER),
    ("queryMsgById", "-t", "orders", "-i", "{id}"),
    ("queryMsgByKey", "-t", "orders", "-k", "key-2"),
    ("queryMsgByUniqueKey", "-t", "orders", "-i", "{unique}"),
    ("queryMsgByOffset", "-t", "orders", "-b", BROKER, "-i", "1", "-o", "1"),
    ("queryMsgTraceById", "-i", "{unique}"),
    ("printMsg", "-t", "orders"),
    ("printMsgByQueue", "-t", "orders", "-a", BROKER, "-i", "1", "-p", "true"),
    ("consumeMessage", "-t", "orders", "-b", BROKER, "-i", "1", "-o", "0", "-c", "2", "-g", "CG"),
    ("queryCq", "-t", "orders", "-q", "1", "-i", "0", "-c", "3", *AT_BROKER),
    ("consumerProgress", "-g", "CG"),
    ("consumerConnection", "-g", "CG"),
    ("consumerStatus", "-g", "CG"),
    ("producerConnection", "-g", "P", "-t", "orders"),
    ("producer", *AT_BROKER),
    ("getConsumerConfig", "-g", "CG"),
    ("brokerConsumeStats", *AT_BROKER),
    ("statsAll", "-a"),
    ("cloneGroupOffset", "-s", "CG", "-d", "CH", "-t", "orders", "-o", "false"),
    ("resetOffsetByTime", "-g", "CH", "-t", "orders", "-s", "-1"),
    ("skipAccumulatedMessage", "-g", "CH", "-t", "orders"),
    ("sendMessage", "-t", "orders", "-p", "by mqadmin", "-k", "key-9", "-b", BROKER, "-i", "0"),
    ("sendMsgStatus", "-b", BROKER, "-s", "10", "-c", "2"),
    ("checkMsgSendRT", "-t", "orders", "-a", "2", "-s", "10"),
    ("cleanExpiredCQ", *AT_CLUSTER),
    ("deleteExpiredCommitLog", *AT_CLUSTER),
    ("cleanUnusedTopic", *AT_CLUSTER),
    ("exportMetadata", *AT_CLUSTER, "-f", "{home}/exported"),
    ("exportConfigs", *AT_CLUSTER, "-f", "{home}/exported"),
    ("exportMetrics", *AT_CLUSTER, "-f", "{home}/exported"),
    ("exportPopRecord", *AT_BROKER, "-d", "false"),
    ("updateColdDataFlowCtrGroupConfig", *AT_BROKER, "-g", "CG", "-v", "1048576"),
    ("getColdDataFlowCtrInfo", *AT_BROKER),
    ("removeColdDataFlowCtrGroupConfig", *AT_BROKER, "-g", "CG"),
    ("setCommitLogReadAheadMode", *AT_BROKER, "-m", "0"),
    ("switchTimerEngine", *AT_BROKER, "-e", "F"),
    ("updateStaticTopic", "-t", "static", "-qn", "2", *AT_CLUSTER),
    ("remappingStaticTopic", "-t", "static", *AT_CLUSTER),
    ("addBroker", "-c", "{address}", "-b", "{home}/other.conf"),
    ("removeBroker", "-c", "{address}", "-b", f"{CLUSTER}:{BROKER}:1"),
    ("resetMasterFlushOffset", *AT_BROKER, "-o", "0"),
    ("getSyncStateSet", "-a", ABSENT, "-b", BROKER),
    ("getBrokerEpoch", "-b", BROKER),
    ("getControllerMetaData", "-a", ABSENT),
    ("getControllerConfig", "-a", ABSENT),
    ("updateControllerConfig", "-a", ABSENT, "-k", "key", "-v", "value"),
    ("electMaster", "-a", ABSENT, "-b", "1", *AT_CLUSTER, "-bn", BROKER),
    ("cleanBrokerMetadata", "-a", ABSENT, "-bn", BROKER, *AT_CLUSTER),
    ("dumpCompactionLog", "-f", "{home}/nothing"),
    ("createUser", *AT_BROKER, "-u", "someone", "-p", "a secret", "-t", "Normal"),
    ("updateUser", *AT_BROKER, "-u", "someone", "-p", "another"),
    ("getUser", *AT_BROKER, "-u", "someone"),
    ("listUser", *AT_BROKER),
    ("copyUser", "-f", "{address}", "-t", "{address}"),
    ("createAcl", *AT_BROKER, "-s", "User:someone", "-r", "Topic:orders", "-a", "Pub", "-d", "Allow"),
    ("updateAcl", *AT_BROKER, "-s", "User:someone", "-r", "Topic:orders", "-a", "Sub", "-d", "Allow"),
    ("getAcl", *AT_BROKER, "-s", "User:someone"),
    ("listAcl", *AT_BROKER),
    ("copyAcl", "-f", "{address}", "-t", "{address}"),
    ("deleteAcl", *AT_BROKER, "-s", "User:someone"),
    ("deleteUser", *AT_BROKER, "-u", "someone"),
    ("rocksDBConfigToJson", *AT_CLUSTER, "-t", "topics"),
    ("exportMetadataInRocksDB", "-p", "{home}/nothing", "-t", "topics"),
    ("checkRocksdbCqWriteProgress", *AT_CLUSTER, "-t", "orders"),
    ("getBrokerLiteInfo", *AT_BROKER),
    ("getParentTopicInfo", "-p", "light"),
    ("getLiteTopicInfo", "-p", "light", "-l", "lite"),
    ("getLiteClientInfo", "-p", "light", "-g", "LG", "-c", "client-1"),
    ("getLiteGroupInfo", "-p", "light", "-g", "LG"),
    ("triggerLiteDispatch", "-p", "light", "-g", "LG"),
    ("deleteSubGroup", *AT_CLUSTER, "-g", "CH", "-r", "true"),
    ("deleteTopic", *AT_CLUSTER, "-t", "list-1"),
)
NOT_RUN: Mapping[str, str] = {
    "startMonitoring": "a program that runs until it is ended; it asks as `consumerProgress` and `consumerStatus` do",
    "clusterRT": "a program that runs until it is ended; it sends messages",
}
CONTROLLER = "asks a controller ([controller.md](controller.md))"
NO_BROKER: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "getSyncStateSet",
            "getControllerMetaData",
            "getControllerConfig",
            "updateControllerConfig",
            "electMaster",
            "cleanBrokerMetadata",
        ),
        CONTROLLER,
    ),
    "dumpCompactionLog": "reads a local file of a compaction topic, which this broker does not write",
    "exportMetadataInRocksDB": "reads a local RocksDB, which this broker does not write",
}
SILENT: Mapping[str, RequestCode] = {
    "getParentTopicInfo": RequestCode.GET_PARENT_TOPIC_INFO,
    "getLiteTopicInfo": RequestCode.GET_LITE_TOPIC_INFO,
    "getLiteClientInfo": RequestCode.GET_LITE_CLIENT_INFO,
    "getLiteGroupInfo": RequestCode.GET_LITE_GROUP_INFO,
    "triggerLiteDispatch": RequestCode.TRIGGER_LITE_DISPATCH,
}
"""Of these mqadmin prints that a broker refused, and no reason: both brokers' refusals read alike."""
_REFUSED_SILENTLY = re.compile(rf"^(\[{BROKER}\] error\.|{BROKER} +error) *$", re.MULTILINE)
_FAILED = re.compile(r"Exception:|CODE: \d+|command failed|^usage: ", re.MULTILINE)


TIMED_OUT = "RemotingTimeoutException"
"""A machine that is busy with other things: the command is run again."""


def is_failure(said: str) -> bool:
    return bool(_FAILED.search(said))


def outcome(command: str, real: str, ours: str) -> str:
    """How our broker's answer is called, by what mqadmin printed of both. Raises AssertionError for a failure."""
    if command in NO_BROKER:
        return f"no broker: {NO_BROKER[command]}"
    if command == "remappingStaticTopic":  # There is no such topic, since none could be made.
        return f"not applicable: {REASONS[RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC]}"
    if command in SILENT and _REFUSED_SILENTLY.search(ours):
        return f"not applicable: {REASONS[SILENT[command]]}"
    if reason := next((each for each in (*REASONS.values(), NO_CONTROLLER) if each in ours), None):
        return f"not applicable: {reason}"
    if ours == real:
        return "both refuse alike" if is_failure(ours) else "same answer"
    assert not is_failure(ours), f"{command}: the real broker's:\n{real}\nours:\n{ours}"
    return "works"
