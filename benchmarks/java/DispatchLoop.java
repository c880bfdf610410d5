import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * Dispatch of a whole log file to consume queues and the key index, in RocketMQ's shape: every record becomes Strings, a
 * property map and a request object, which two dispatchers consume one after the other.
 *
 * prepare log=FILE dir=DIRECTORY; run fresh=0|1 (dispatches all of the log into emptied queue and index
 * files: warm ones, or fresh ones as a store makes them while it dispatches).
 */
public final class DispatchLoop implements Rounds.Work {
    /** What one record means to the dispatchers. */
    private static final class Request {
        final String topic;
        final int queueId;
        final long physicalOffset;
        final int size;
        final long tagsCode;
        final long storeTimestamp;
        final long queueOffset;
        final boolean success;
        final String keys;
        final String uniqueKey;
        final int sysFlag;
        final long preparedTransactionOffset;
        final Map<String, String> properties;

        Request(String topic, int queueId, long physicalOffset, int size, long tagsCode, long storeTimestamp,
                long queueOffset, String keys, String uniqueKey, int sysFlag, long preparedTransactionOffset,
                Map<String, String> properties) {
            this.topic = topic;
            this.queueId = queueId;
            this.physicalOffset = physicalOffset;
            this.size = size;
            this.tagsCode = tagsCode;
            this.storeTimestamp = storeTimestamp;
            this.queueOffset = queueOffset;
            this.success = true;
            this.keys = keys;
            this.uniqueKey = uniqueKey;
            this.sysFlag = sysFlag;
            this.preparedTransactionOffset = preparedTransactionOffset;
            this.properties = properties;
        }
    }

    private final ConcurrentMap<String, ConcurrentMap<Integer, QueueFile>> queues = new ConcurrentHashMap<>();
    private LogFile log;
    private IndexFile index;
    private volatile long logicsTimestamp;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new DispatchLoop());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        log = LogFile.openWarm(parameters.text("log"));
        String directory = parameters.text("dir");
        long records = log.size / Samples.RECORD_BYTES + 1;
        long units = records / (Samples.TOPICS * Samples.QUEUES) * 2 + 1024;
        for (int topic = 0; topic < Samples.TOPICS; topic++) {
            ConcurrentMap<Integer, QueueFile> ofTopic = new ConcurrentHashMap<>();
            for (int queue = 0; queue < Samples.QUEUES; queue++) {
                String path = directory + File.separator + Samples.topic(topic) + "-" + queue;
                ofTopic.put(queue, new QueueFile(path, units));
            }
            queues.put(Samples.topic(topic), ofTopic);
        }
        index = IndexFile.createWarm(directory + File.separator + "index", records + records / 8);
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        boolean fresh = parameters.number("fresh") == 1;
        for (ConcurrentMap<Integer, QueueFile> ofTopic : queues.values()) {
            for (QueueFile queue : ofTopic.values()) {
                queue.clear(fresh);
            }
        }
        index.clear(fresh);
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        ByteBuffer buffer = log.select(0, log.size).buffer;
        long count = 0;
        long bytes = 0;
        while (buffer.remaining() > 8) {
            Request request = check(buffer);
            if (request == null) {
                break;
            }
            if (!queue(request) || !index(request)) {
                throw new IllegalStateException("record at " + request.physicalOffset + " was not dispatched");
            }
            count++;
            bytes += request.size;
        }
        return new Rounds.Done(count, bytes, index.count());
    }

    /** The next record as a request; null at the blank record or at the end of the data. */
    private Request check(ByteBuffer buffer) {
        int size = buffer.getInt();
        int magic = buffer.getInt();
        if (magic != LogFile.MAGIC) {
            return null;
        }
        byte[] bytes = new byte[size];
        int bodyCrc = buffer.getInt();
        int queueId = buffer.getInt();
        int flag = buffer.getInt();
        long queueOffset = buffer.getLong();
        long physicalOffset = buffer.getLong();
        int sysFlag = buffer.getInt();
        long bornTimestamp = buffer.getLong();
        buffer.get(bytes, 0, 8);
        long storeTimestamp = buffer.getLong();
        buffer.get(bytes, 0, 8);
        int reconsumeTimes = buffer.getInt();
        long preparedTransactionOffset = buffer.getLong();
        int bodyLength = buffer.getInt();
        buffer.position(buffer.position() + bodyLength);
        int topicLength = buffer.get();
        buffer.get(bytes, 0, topicLength);
        String topic = new String(bytes, 0, topicLength, StandardCharsets.UTF_8);
        int propertiesLength = buffer.getShort();
        long tagsCode = 0;
        String keys = "";
        String uniqueKey = null;
        Map<String, String> properties = null;
        if (propertiesLength > 0) {
            buffer.get(bytes, 0, propertiesLength);
            properties = properties(new String(bytes, 0, propertiesLength, StandardCharsets.UTF_8));
            keys = properties.get("KEYS");
            uniqueKey = properties.get("UNIQ_KEY");
            String tags = properties.get("TAGS");
            tagsCode = tags == null || tags.isEmpty() ? 0 : tags.hashCode();
        }
        if (91 + bodyLength + topicLength + propertiesLength != size) {
            throw new IllegalStateException("half a record at " + physicalOffset + ", flag " + flag + ", CRC " + bodyCrc
                + ", born " + bornTimestamp + ", reconsumed " + reconsumeTimes);
        }
        return new Request(topic, queueId, physicalOffset, size, tagsCode, storeTimestamp, queueOffset, keys,
            uniqueKey, sysFlag, preparedTransactionOffset, properties);
    }

    private static Map<String, String> properties(String text) {
        Map<String, String> map = new HashMap<>(128);
        int length = text.length();
        int at = 0;
        while (at < length) {
            int end = text.indexOf('\u0002', at);
            if (end < 0) {
                end = length;
            }
            int separator = text.indexOf('\u0001', at);
            if (end - at >= 3 && separator > at && separator < end - 1) {
                map.put(text.substring(at, separator), text.substring(separator + 1, end));
            }
            at = end + 1;
        }
        return map;
    }

    private boolean queue(Request request) {
        int transaction = request.sysFlag & 0x0C;
        if (transaction != 0 && transaction != 0x08) {
            return true;
        }
        QueueFile queue = queues.get(request.topic).get(request.queueId);
        boolean done = queue.put(request.physicalOffset, request.size, request.tagsCode, request.queueOffset);
        logicsTimestamp = request.storeTimestamp;
        return done;
    }

    private boolean index(Request request) {
        if (request.physicalOffset < index.endPhysicalOffset()) {
            return true;
        }
        boolean done = true;
        if (request.uniqueKey != null) {
            done = index.putKey(request.topic + "#" + request.uniqueKey, request.physicalOffset, request.storeTimestamp);
        }
        if (request.keys != null && !request.keys.isEmpty()) {
            for (String key : request.keys.split(" ")) {
                if (!key.isEmpty()) {
                    done &= index.putKey(request.topic + "#" + key, request.physicalOffset, request.storeTimestamp);
                }
            }
        }
        return done;
    }
}
