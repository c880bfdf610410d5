package tiermq.peer;

import java.nio.file.Files;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A broker of another process where a test expects one of its own: never started, it knows the name and the address,
 * and asks over the wire for what tests look up inside. What cannot be asked for stays what an idle broker answers.
 */
public final class RemoteBroker extends BrokerController {
    private static final long PATIENCE_MS = 30_000;
    private static DefaultMQAdminExt admin;
    private final MessageStore store;
    private final TopicConfigManager topics = new RemoteTopics();
    private final SubscriptionGroupManager groups = new RemoteGroups();
    private final ConsumerOffsetManager offsets = new RemoteOffsets();
    private final BrokerOuterAPI outer = new IdleOuterApi();

    private RemoteBroker(BrokerConfig config, NettyServerConfig server, MessageStoreConfig storeConfig)
        throws Exception {
        super(config, server, new NettyClientConfig(), storeConfig);
        store = new RemoteStore(storeConfig, config);
    }

    /** `place` is name@host:port. */
    public static RemoteBroker at(String place, String nameServer) {
        try {
            startAdmin(nameServer);
            String[] parts = place.split("[@:]");
            BrokerConfig config = new BrokerConfig();
            config.setBrokerName(parts[0]);
            config.setBrokerIP1(parts[1]);
            config.setNamesrvAddr(nameServer);
            NettyServerConfig server = new NettyServerConfig();
            server.setListenPort(Integer.parseInt(parts[2]));
            config.setListenPort(server.getListenPort());
            MessageStoreConfig store = new MessageStoreConfig();
            store.setStorePathRootDir(Files.createTempDirectory("peer-" + parts[0]).toString());
            return new RemoteBroker(config, server, store);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static synchronized void startAdmin(String nameServer) throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(PATIENCE_MS);
            admin.setNamesrvAddr(nameServer);
            admin.setInstanceName("peer-lookups");
            admin.start();
        }
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics == null ? super.getTopicConfigManager() : topics;
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return groups == null ? super.getSubscriptionGroupManager() : groups;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets == null ? super.getConsumerOffsetManager() : offsets;
    }

    @Override
    public BrokerOuterAPI getBrokerOuterAPI() {
        return outer == null ? super.getBrokerOuterAPI() : outer;
    }

    /** The other process goes on: whoever restarts a broker of its own with other settings finds it as it was. */
    @Override
    public void shutdown() {
    }

    private interface Asking<T> {
        T ask() throws Exception;
    }

    private static <T> T asked(Asking<T> what) {
        try {
            return what.ask();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static final class RemoteStore extends DefaultMessageStore {
        private final String brokerName;

        RemoteStore(MessageStoreConfig config, BrokerConfig broker) throws Exception {
            super(config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
            brokerName = broker.getBrokerName();
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queueId) {
            return asked(() -> admin.maxOffset(new MessageQueue(topic, brokerName, queueId)));
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queueId) {
            return asked(() -> admin.minOffset(new MessageQueue(topic, brokerName, queueId)));
        }

        @Override
        public long dispatchBehindBytes() {
            return asked(() -> Long.parseLong(admin.fetchBrokerRuntimeStats(addressOf(brokerName)).getTable()
                .getOrDefault("dispatchBehindBytes", "0")));
        }
    }

    private static String addressOf(String brokerName) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().get(brokerName).selectBrokerAddr();
    }

    private final class RemoteTopics extends TopicConfigManager {
        @Override
        public TopicConfig selectTopicConfig(String topic) {
            return asked(() -> admin.examineTopicConfig(getBrokerAddr(), topic));
        }

        @Override
        public void updateTopicConfig(TopicConfig topic) {
            asked(() -> {
                admin.createAndUpdateTopicConfig(getBrokerAddr(), topic);
                return null;
            });
        }

        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return asked(() -> admin.getAllTopicConfig(getBrokerAddr(), PATIENCE_MS).getTopicConfigTable());
        }
    }

    private final class RemoteGroups extends SubscriptionGroupManager {
        @Override
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            SubscriptionGroupConfig found = asked(() -> admin.examineSubscriptionGroupConfig(getBrokerAddr(), group));
            if (found == null) { // A broker makes a group that is looked for.
                found = new SubscriptionGroupConfig();
                found.setGroupName(group);
            }
            return found;
        }

        @Override
        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
            asked(() -> {
                admin.createAndUpdateSubscriptionGroupConfig(getBrokerAddr(), group);
                return null;
            });
        }
    }

    private final class RemoteOffsets extends ConsumerOffsetManager {
        @Override
        public long queryOffset(String group, String topic, int queueId) {
            return asked(() -> {
                QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
                header.setConsumerGroup(group);
                header.setTopic(topic);
                header.setQueueId(queueId);
                return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                    .queryConsumerOffset(getBrokerAddr(), header, PATIENCE_MS);
            });
        }

        @Override
        public long queryPullOffset(String group, String topic, int queueId) {
            MessageQueue queue = new MessageQueue(topic, getBrokerConfig().getBrokerName(), queueId);
            return asked(() -> admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                .getConsumeStats(getBrokerAddr(), group, topic, PATIENCE_MS)).getOffsetTable().get(queue)
                .getPullOffset();
        }
    }

    /** Tests refresh what a broker of theirs knows of the cluster; this one needs none of it. */
    private static final class IdleOuterApi extends BrokerOuterAPI {
        IdleOuterApi() {
            super(new NettyClientConfig(), new AuthConfig());
        }

        @Override
        public void refreshMetadata() {
        }
    }
}
