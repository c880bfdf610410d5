import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * Pull of 32 messages from a random queue and offset, in RocketMQ's shape: queue units, one reference-counted slice of
 * the log per message, a list of them, and at last one heap array that the response carries.
 *
 * prepare log=FILE dir=DIRECTORY; run pulls=COUNT batch=MESSAGES seed=NUMBER.
 */
public final class GetLoop implements Rounds.Work {
    /** What a pull returns before it is copied: slices, their queue offsets, totals. */
    private static final class GetResult {
        final List<LogFile.Selected> selected;
        final List<ByteBuffer> buffers;
        final List<Long> queueOffsets;
        int totalBytes;
        long nextBeginOffset;
        long minOffset;
        long maxOffset;

        GetResult(int capacity) {
            selected = new ArrayList<>(capacity);
            buffers = new ArrayList<>(capacity);
            queueOffsets = new ArrayList<>(capacity);
        }

        void add(LogFile.Selected one, long queueOffset) {
            selected.add(one);
            buffers.add(one.buffer);
            queueOffsets.add(queueOffset);
            totalBytes += one.size;
        }
    }

    private final ConcurrentMap<String, ConcurrentMap<Integer, QueueFile>> queues = new ConcurrentHashMap<>();
    private LogFile log;
    private String[] topics;
    private String[] pullTopics;
    private int[] pullQueues;
    private long[] pullOffsets;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new GetLoop());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        log = LogFile.openWarm(parameters.text("log"));
        long units = log.size / Samples.RECORD_BYTES / (Samples.TOPICS * Samples.QUEUES) * 2 + 1024;
        topics = new String[Samples.TOPICS];
        for (int topic = 0; topic < Samples.TOPICS; topic++) {
            topics[topic] = Samples.topic(topic);
            ConcurrentMap<Integer, QueueFile> ofTopic = new ConcurrentHashMap<>();
            for (int queue = 0; queue < Samples.QUEUES; queue++) {
                String path = parameters.text("dir") + File.separator + topics[topic] + "-" + queue;
                ofTopic.put(queue, new QueueFile(path, units));
            }
            queues.put(topics[topic], ofTopic);
        }
        fillQueues();
    }

    private void fillQueues() {
        ByteBuffer buffer = log.mapped;
        byte[] name = new byte[127];
        int at = 0;
        while (at + 8 <= log.size && buffer.getInt(at + 4) == LogFile.MAGIC) {
            int size = buffer.getInt(at);
            int bodyLength = buffer.getInt(at + 84);
            int topicLength = buffer.get(at + 88 + bodyLength);
            buffer.get(at + 89 + bodyLength, name, 0, topicLength);
            String topic = new String(name, 0, topicLength, java.nio.charset.StandardCharsets.UTF_8);
            queues.get(topic).get(buffer.getInt(at + 12)).put(at, size, 0, buffer.getLong(at + 20));
            at += size;
        }
    }

    /** Chooses the pulls of the next round; one generator step for the queue and one for the offset, as in Python. */
    @Override
    public void reset(Rounds.Parameters parameters) {
        int pulls = (int) parameters.number("pulls");
        int batch = (int) parameters.number("batch");
        java.util.Random random = new java.util.Random(parameters.number("seed"));
        pullTopics = new String[pulls];
        pullQueues = new int[pulls];
        pullOffsets = new long[pulls];
        for (int i = 0; i < pulls; i++) {
            pullTopics[i] = topics[random.nextInt(Samples.TOPICS)];
            pullQueues[i] = random.nextInt(Samples.QUEUES);
            int units = queues.get(pullTopics[i]).get(pullQueues[i]).file.wrotePosition / QueueFile.UNIT_BYTES;
            pullOffsets[i] = random.nextInt(Math.max(1, units - batch));
        }
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        int batch = (int) parameters.number("batch");
        long messages = 0;
        long bytes = 0;
        long check = 0;
        for (int i = 0; i < pullTopics.length; i++) {
            GetResult result = get(pullTopics[i], pullQueues[i], pullOffsets[i], batch);
            byte[] body = copy(result);
            messages += result.queueOffsets.size();
            bytes += body.length;
            check += body[body.length - 1] + result.nextBeginOffset;
        }
        return new Rounds.Done(messages, bytes, check);
    }

    private GetResult get(String topic, int queueId, long offset, int maxMessages) {
        QueueFile queue = queues.get(topic).get(queueId);
        GetResult result = new GetResult(maxMessages);
        result.minOffset = 0;
        result.maxOffset = queue.file.wrotePosition / QueueFile.UNIT_BYTES;
        if (offset >= result.maxOffset) {
            return result;
        }
        int wanted = (int) Math.min(maxMessages, result.maxOffset - offset) * QueueFile.UNIT_BYTES;
        LogFile.Selected units = queue.file.select((int) (offset * QueueFile.UNIT_BYTES), wanted);
        try {
            long next = offset;
            while (units.buffer.hasRemaining() && result.queueOffsets.size() < maxMessages) {
                long physicalOffset = units.buffer.getLong();
                int size = units.buffer.getInt();
                long tagsCode = units.buffer.getLong();
                LogFile.Selected one = log.select((int) physicalOffset, size);
                if (one == null || tagsCode < 0) {
                    break;
                }
                result.add(one, next++);
            }
            result.nextBeginOffset = next;
        } finally {
            units.release();
        }
        return result;
    }

    private static byte[] copy(GetResult result) {
        ByteBuffer body = ByteBuffer.allocate(result.totalBytes);
        try {
            for (ByteBuffer buffer : result.buffers) {
                body.put(buffer);
            }
        } finally {
            result.selected.forEach(LogFile.Selected::release);
        }
        return body.array();
    }
}
