package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.junit.AssumptionViolatedException;
import tiermq.peer.RemoteBroker;

/**
 * TierMQ's stand-in for the class of this name, earlier on the class path: it starts nothing, and hands out servers
 * that run already: -Dpeer.nameServer=host:port, -Dpeer.brokers=name@host:port,… in the order of their numbers.
 */
public class IntegrationTestBase {
    public static Logger logger = LoggerFactory.getLogger(IntegrationTestBase.class);
    public static volatile int commitLogSize;
    protected static int topicCreateTime = 30;
    private static final String NAME_SERVER = System.getProperty("peer.nameServer");
    private static final String[] PLACES = System.getProperty("peer.brokers").split(",");
    private static final Map<String, BrokerController> HANDED_OUT = new HashMap<>();

    public static String createBaseDir() {
        throw new AssumptionViolatedException("needs a broker of its own, started in the process of the test");
    }

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(Integer.parseInt(NAME_SERVER.substring(NAME_SERVER.lastIndexOf(':') + 1)));
        return new NamesrvController(new NamesrvConfig(), server);
    }

    public static BrokerController createAndStartBroker(String nameServer) {
        if (HANDED_OUT.size() == PLACES.length) {
            throw new AssumptionViolatedException("needs more brokers than run");
        }
        RemoteBroker made = RemoteBroker.at(PLACES[HANDED_OUT.size()], nameServer);
        HANDED_OUT.put(made.getBrokerConfig().getBrokerName(), made);
        return made;
    }

    /** Whoever restarts a broker with other settings gets the one that runs; a new one cannot be had. */
    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        BrokerController known = HANDED_OUT.get(config.getBrokerName());
        if (known == null) {
            createBaseDir();
        }
        return known;
    }

    public static void createAndStartProxy(String mode) {
        createBaseDir();
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, CQType kind) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, kind, TopicMessageType.NORMAL, null);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, TopicMessageType type) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type, null);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, int queues, CQType kind) {
        return initTopic(topic, nameServer, cluster, queues, kind, TopicMessageType.NORMAL, null);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, int queues, CQType kind,
        TopicMessageType type) {
        return initTopic(topic, nameServer, cluster, queues, kind, type, null);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, int queues, CQType kind,
        TopicMessageType type, Long liteExpiration) {
        Map<String, String> attributes = new HashMap<>();
        if (kind != CQType.SimpleCQ) {
            attributes.put("+queue.type", kind.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+message.type", type.toString());
        }
        if (liteExpiration != null) {
            attributes.put("+lite.topic.expiration", liteExpiration.toString());
        }
        return MQAdminTestUtils.createTopic(nameServer, cluster, topic, queues, attributes, topicCreateTime);
    }

    public static void initMQAdmin(String nameServer) {
        try {
            MQAdminTestUtils.startAdmin(nameServer);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
