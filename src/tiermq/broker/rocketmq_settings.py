"""RocketMQ's settings in TierMQ: those that ask for guarantees TierMQ does not give, other spellings, and all names.

Every setting of RocketMQ 5.3.3 and 5.5.0 (BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig,
AuthConfig, the tiered store's) is one of these:

    kept        a field of `BrokerConfig`, `StoreConfig` or `TierConfig`
    alias       another spelling of one, in ALIASES, or one that `metrics_settings` understands
    refused     in PROMISES: some of its values ask for security, durability or a path that is not supported
    no effect   in NAMES and in none of the above: threads, queues, caches, statistics of an implementation
    unknown     none of RocketMQ's

A broker whose file has a refused value does not start, unless its operator accepts less (`--accept-weaker`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiermq.broker.broker_config import CHANGEABLE_OF_BROKER, CHANGEABLE_OF_STORE, BrokerConfig
from tiermq.config import PROMISES as STORE_PROMISES
from tiermq.config import SETTINGS as STORE_SETTINGS
from tiermq.errors import BadConfig
from tiermq.remoting.security_promises import ACL, SECURITY_PROMISES
from tiermq.settings import Above, Promise, is_false, is_given, is_true, settings_of

TIER, NAMESRV, ENDPOINT, CONTROLLER = "--tier", "--namesrv", "AWS_ENDPOINT_URL", "enableControllerMode"
"""An operator's override that keeps a promise; those of security are in `remoting.security_promises`."""

ALIASES = {
    "tieredStoreFilepath": "tieredStoreFilePath",  # So in RocketMQ's documentation.
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",  # So up to RocketMQ 4.
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "metricsPromExporterHost": "metricsHost",
    "enableDLedgerCommitLog": "enableDLegerCommitLog",
}
PROM_PORT = 5557
_EXPORTERS = {"0": "DISABLE", "1": "OTLP_GRPC", "2": "PROM", "3": "LOG"}

_NO_CONTROLLER = "this way of giving roles is not provided: brokerRole does, or a controller"
_BY_ROLE = "leave it out; docs/replication.md describes masters and slaves"
_NO_ROCKSDB = "there is no RocksDB here, and what RocketMQ keeps in one is not read"
_TO_FILES = "leave it out, and let RocketMQ convert a store that has one: docs/compatibility.md"
_FIND_SERVERS = "name servers are not looked up: this broker would not be registered at them"


def _role(asks: Any = is_true) -> Promise:
    return Promise(asks, _NO_CONTROLLER, _BY_ROLE)


def _names_changeable(value: str) -> bool:
    known = settings_of(BrokerConfig)
    changeable = {known[name].property_name for name in CHANGEABLE_OF_BROKER}
    changeable |= {STORE_SETTINGS[name].property_name for name in CHANGEABLE_OF_STORE}
    return any(name.strip() in changeable for name in value.split(";"))


PROMISES: Mapping[str, Promise] = {
    **{name: promise for name, promise in STORE_PROMISES.items() if name != "brokerRole"},
    **SECURITY_PROMISES,
    # Requests.
    "rejectPullConsumerEnable": Promise(is_true, "pulls would be served", "leave it out, or deny SUB with --acl", ACL),
    "litePullMessageEnable": Promise(is_false, "pulls would be served", "leave it out, or deny SUB with --acl", ACL),
    "startAcceptSendRequestTimeStamp": Promise(Above(0), "sends would be taken before that time", "leave it out"),
    "configBlackList": Promise(
        _names_changeable,
        "settings in it could be changed over the network",
        "leave it out, and let only an admin account do so with --acl",
        ACL,
    ),
    # Roles that change by themselves.
    "totalReplicas": _role(Above(1)),
    "allAckInSyncStateSet": Promise(
        is_true,
        "there is no SyncStateSet without a controller",
        "set enableControllerMode=true and controllerAddr",
        CONTROLLER,
    ),
    "enableDLegerCommitLog": _role(),
    "fetchControllerAddrByDnsLookup": Promise(
        is_true, "controllers are not looked up in the DNS", "leave it out, and name them in controllerAddr"
    ),
    "asyncLearner": _role(),
    "haFlowControlEnable": Promise(is_true, "replication is not throttled", "leave it out"),
    # Where things are kept.
    "storeType": Promise(lambda value: value.strip() not in ("", "default"), _NO_ROCKSDB, _TO_FILES),
    "configManagerVersion": Promise(lambda value: value.strip().lower() not in ("", "v1"), _NO_ROCKSDB, _TO_FILES),
    "rocksdbCQDoubleWriteEnable": Promise(is_true, _NO_ROCKSDB, _TO_FILES),
    "transRocksDBEnable": Promise(is_true, _NO_ROCKSDB, _TO_FILES),
    "timerRocksDBEnable": Promise(is_true, _NO_ROCKSDB, _TO_FILES),
    "popConsumerKVServiceEnable": Promise(is_true, _NO_ROCKSDB, _TO_FILES),
    "messageStorePlugIn": Promise(is_given, "there is no tier to keep history in", "give --tier URL", TIER),
    "objectStoreBucket": Promise(is_given, "no bucket is used", "give --tier s3://bucket/prefix", TIER),
    "objectStoreEndpoint": Promise(
        is_given, "this endpoint is not asked", "set AWS_ENDPOINT_URL in the environment", ENDPOINT
    ),
    # Registration and metrics.
    "fetchNameSrvAddrByDnsLookup": Promise(is_true, _FIND_SERVERS, "give --namesrv", NAMESRV),
    "fetchNamesrvAddrByAddressServer": Promise(is_true, _FIND_SERVERS, "give --namesrv", NAMESRV),
    "metricsExporterType": Promise(
        lambda value: _EXPORTERS.get(value.strip(), value.strip()) in ("OTLP_GRPC", "LOG"),
        "metrics are pushed nowhere and not logged",
        "write PROM, and let Prometheus fetch them",
    ),
}

GUARANTEES = (
    "brokerRole",
    "flushDiskType",
    "inSyncReplicas",
    "minInSyncReplicas",
    "enableControllerMode",
    "haTlsEnable",
    "haAllowedAddresses",
    "bindAddress",
    "brokerPermission",
    "readOnly",
    "tieredStoreFilePath",
    "fileReservedTime",
)
"""Settings that are kept, and whose misspelling would start a broker that is less safe than its file states."""


def metrics_settings(entries: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a broker that RocketMQ's `metricsExporterType` and `metricsPromExporterPort` mean."""
    text = entries.get("metricsExporterType", "DISABLE").strip()
    kind = _EXPORTERS.get(text, text)
    if kind not in _EXPORTERS.values():
        raise BadConfig(f"metricsExporterType is one of {', '.join(_EXPORTERS.values())}, found {text!r}")
    return {"metrics_port": entries.get("metricsPromExporterPort", PROM_PORT)} if kind == "PROM" else {}


NAMES = frozenset(
    """
    accessMessageInMemoryHotRatio accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums
    ackThreadPoolQueueCapacity aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync appendTopicForTimerDeleteKey asyncLearner
    asyncSendEnable authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled authorizationMetadataProvider
    authorizationProvider authorizationStrategy authorizationWhitelist autoDeleteUnusedStats
    batchDispatchRequestThreadPoolNums bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond
    broadcastOffsetExpireSecond brokerConfigPath brokerFastFailureEnable
    cgColdReadThreshold channelNotActiveInterval
    checkCommitLogOffsetOnRecover checkSyncStateSetPeriod cleanOfflineBrokerInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
    clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
    clientSocketSndBufSize clientWorkerThreads clusterName coldCtrStrategyEnable coldDataFlowControlEnable
    coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
    combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq commercialBaseCount
    commercialSizePerMsg commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
    compactionThreadNum compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion
    connectTimeoutMillis consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity
    consumerManageThreadPoolNums consumerOffsetUpdateVersionStep
    correctLogicMinOffsetSleepInterval dataReadAheadEnable debugLockEnable defaultMessageRequestMode
    defaultPopShareQueueNum delayOffsetUpdateVersionStep disableCallbackExecutor disableConsumeIfConsumerReadSlowly
    disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum dispatchCqThreads
    dispatchFromSenderThread dLegerGroup dLegerPeers dLegerSelfId enableAcceleratedRecovery enableAsyncReput
    enableBatchPush enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently
    enableCalcFilterBitMap enableCleanExpiredOffset enableCompaction enableConnectionMetrics
    enableCreateSysGroup enableDetailStat enableDLegerCommitLog enableFastChannelEventProcess enableLagAndDlqMetrics
    enableLiteEventMode enableLitePopLog enableLmqQuota enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType
    enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
    enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enableReconnectForGoAway enableRegisterProducer enableRemotingMetrics enableRequestMetrics
    enableRocksDBLog enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully
    enableSingleTopicRegister enableSkipLongAwaitingAck enableSplitMetadata
    enableSplitRegistration enableStatsMetrics enableTransactionMetrics endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter fetchControllerAddrByDnsLookup
    fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval filterDataCleanTimeSpan
    flushConsumerOffsetHistoryInterval forceRegister forwardTimeout globalColdReadThreshold haFlowControlEnable
    heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
    highSpeedMode indexFileReadEnable indexFileWriteEnable indexRocksDBEnable initAuthenticationUser
    initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials isolateLogEnable
    isScanAvailableNameSrv iteratorWhenUseRocksdbConsumeQueue liteEventCheckInterval liteEventFullDispatchDelayTime
    liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable liteLagLatencyCollectEnable
    liteLagLatencyMetricsEnable liteLagLatencyTopK litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills
    loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity lockInStrictMode logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum mappedFileSwapEnable maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxClientEventCount maxErrorRateOfBloomFilter maxHaTransferByteInSecond
    maxLmqConsumeQueueNum maxMessageFilterNumForNotification maxOffsetMapSize
    maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays maxSlaveResendLength
    maxStatsIdleTimeInMinutes maxTopicLength memTableFlushIntervalMs metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    migrateAuthFromV1Enabled minLiteTTl msgTraceTopicName persistConsumerOffsetIncrementally
    popCkOffsetMaxQueueSize popCkStayBufferTime popConsumerFSServiceInit popConsumerKVServiceEnable
    popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability popFromRetryProbabilityForPriority
    popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
    popReviveSkipIfGroupAbsent preferredLeaderId printChannelGroups printChannelGroupsMinNum priorityOrderAsc
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity realTimeNotifyConsumerChange
    realTimePersistRocksDBConfig recoverConcurrently recoverThreadPoolNums registerBrokerTimeoutMills
    rejectPullConsumerEnable replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs
    reviveMaxSlow reviveScanTime rocketmqHome rocksdbCompressionType rocksdbCQDoubleWriteEnable
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleSteps scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads sharedByteBufferNum shutdownWaitTimeSeconds
    skipWhenCKRePutReachMaxTimes socksProxyConfig spinLockCollisionRetreatOptimalDegree
    splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    statRocksDBCQIntervalSec storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile storeType
    subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncControllerMetadataPeriod
    syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerGetMessageThreadNum
    timerInterceptDelayLevel timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum
    timerRecallToTimelineEnable timerRecallToTimeWheelEnable timerReputServiceCorePoolSize
    timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs
    timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan
    timerRocksDBTimeExpiredMaxTps timerSkipUnknownError timerWarmEnable timerWheelSnapshotFlush
    timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval
    transRocksDBEnable transWriteOriginTransHalfEnable updateNameServerAddrPeriod useABSLock useEpollNativeSelector
    useMessageFilterForNotification usePIDColdCtrStrategy userCacheExpiredSecond userCacheMaxNum
    userCacheRefreshSecond useReentrantLockWhenPutMessage useSeparateRetryQueue useSeparateStorePathForRocksdbCQ
    useSingleRocksDBForAllConfigs useStaticSubscription useTLS validateSystemTopicWhenUpdateTopic
    waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInLitePullQueue waitTimeMillsInTransactionQueue writeBufferHighWaterMark writeBufferLowWaterMark
    writeWithoutMmap metricsExporterType metricsPromExporterPort
    """.split()  # noqa: SIM905 - 370 lines as a list
)
"""RocketMQ's settings that are no fields of our configurations."""
