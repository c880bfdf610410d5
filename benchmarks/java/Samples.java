import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Random;

/**
 * The messages that both sides of every benchmark write: 91 fixed bytes + 200 body + 14 topic + 68 properties = 373.
 * benchmarks/workload.py holds the same shapes for the Python side.
 */
final class Samples {
    static final int TOPICS = 16;
    static final int QUEUES = 4;
    static final int BODY_BYTES = 200;
    static final int RECORD_BYTES = 373;
    static final InetSocketAddress BORN_HOST = host(10, 0, 0, 1, 50000);
    static final InetSocketAddress STORE_HOST = host(10, 0, 0, 2, 10911);

    /** A message as the broker hands it to the store: the property string came ready-made with the request. */
    static final class Message {
        String topic;
        int queueId;
        int flag;
        int sysFlag;
        int reconsumeTimes;
        long bornTimestamp;
        long storeTimestamp;
        long preparedTransactionOffset;
        long queueOffset;
        int bodyCrc;
        byte[] body;
        String propertiesString;
        InetSocketAddress bornHost = BORN_HOST;
        InetSocketAddress storeHost = STORE_HOST;
    }

    static String topic(int number) {
        return String.format("bench-topic-%02d", number);
    }

    static String key(Random random) {
        return String.format("%016x", random.nextLong());
    }

    /** 22 + 13 + 10 + 23 = 68 bytes, one key. */
    static String properties(String key) {
        return "KEYS\u0001" + key + "\u0002TAGS\u0001TagABCD\u0002WAIT\u0001true\u0002CLUSTER\u0001DefaultCluster\u0002";
    }

    /** A pool of distinct messages that visits every queue in turn. */
    static Message[] pool(int count) {
        Random random = new Random(42);
        Message[] messages = new Message[count];
        for (int i = 0; i < count; i++) {
            Message message = new Message();
            message.topic = topic(i % TOPICS);
            message.queueId = i / TOPICS % QUEUES;
            message.bornTimestamp = System.currentTimeMillis();
            message.body = new byte[BODY_BYTES];
            random.nextBytes(message.body);
            message.propertiesString = properties(key(random));
            messages[i] = message;
        }
        return messages;
    }

    private static InetSocketAddress host(int a, int b, int c, int d, int port) {
        try {
            byte[] address = {(byte) a, (byte) b, (byte) c, (byte) d};
            return new InetSocketAddress(InetAddress.getByAddress(address), port);
        } catch (java.net.UnknownHostException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private Samples() {
    }
}
