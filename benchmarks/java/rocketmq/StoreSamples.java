import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** The messages of `workload.py`, as a broker of RocketMQ hands them to its store. */
final class StoreSamples {
    static final int TOPICS = 16;
    static final int QUEUES = 4;
    static final int PROPERTIES_BYTES = 68;
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("10.0.0.1", 50000);
    private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);

    static String topic(int number) {
        return String.format("bench-topic-%02d", number % TOPICS);
    }

    static int queue(int number) {
        return number / TOPICS % QUEUES;
    }

    /** Distinct messages that visit every queue in turn. */
    static MessageExtBrokerInner[] pool(int seed, int count, int bodyBytes) {
        Random random = new Random(seed);
        MessageExtBrokerInner[] messages = new MessageExtBrokerInner[count];
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            address(message, i);
            message.setBody(body(random, bodyBytes));
            String properties = "KEYS\u0001" + key(random)
                + "\u0002TAGS\u0001TagABCD\u0002WAIT\u0001true\u0002CLUSTER\u0001DefaultCluster\u0002";
            MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
            message.setPropertiesString(properties);
            messages[i] = message;
        }
        return messages;
    }

    /** A batch as the client encodes it: `count` messages for one queue, whose properties are their own. */
    static MessageExtBatch batch(int number, int count, int bodyBytes) {
        Random random = new Random(number);
        List<Message> inside = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic(number), "TagABCD", key(random), body(random, bodyBytes));
            MessageAccessor.putProperty(message, "CLUSTER", "DefaultCluster");
            inside.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        address(batch, number);
        MessageAccessor.setProperties(batch, new HashMap<>());
        batch.setBody(MessageDecoder.encodeMessages(inside));
        int properties = MessageDecoder.messageProperties2String(inside.get(0).getProperties()).length();
        if (properties != PROPERTIES_BYTES) {
            throw new IllegalStateException("a message of a batch has " + properties + " bytes of properties");
        }
        return batch;
    }

    private static void address(MessageExtBrokerInner message, int number) {
        message.setTopic(topic(number));
        message.setQueueId(queue(number));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
    }

    private static byte[] body(Random random, int bodyBytes) {
        byte[] body = new byte[bodyBytes];
        random.nextBytes(body);
        return body;
    }

    static String key(Random random) {
        return String.format("%016x", random.nextLong());
    }

    private StoreSamples() {
    }
}
