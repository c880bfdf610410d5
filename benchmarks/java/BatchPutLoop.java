import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import java.util.zip.CRC32;

/**
 * Put of a client batch, in RocketMQ's shape: the body is a run of client-encoded messages for one queue; each is
 * re-encoded into a direct buffer outside the lock, then patched under the lock record by record, and the whole
 * buffer is copied into the mapped file at once.
 *
 * prepare file=PATH size=BYTES batch=COUNT; run count=MESSAGES (starts again at the front of the warm file).
 */
public final class BatchPutLoop implements Rounds.Work {
    private static final int BATCHES = 8;

    /** A batch as the broker hands it to the store. */
    private static final class Batch {
        String topic;
        int queueId;
        int sysFlag;
        int reconsumeTimes;
        long bornTimestamp;
        long storeTimestamp;
        byte[] body;
        ByteBuffer encoded;
        int[] physicalOffsets;
    }

    private final ConcurrentMap<String, Long> queueTable = new ConcurrentHashMap<>(1024);
    private final ReentrantLock putLock = new ReentrantLock();
    private final StringBuilder keyBuilder = new StringBuilder();
    private ByteBuffer encodeBuffer;
    private LogFile log;
    private Batch[] batches;
    private int batchCount;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new BatchPutLoop());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        log = LogFile.createWarm(parameters.text("file"), parameters.number("size"));
        batchCount = (int) parameters.number("batch");
        encodeBuffer = ByteBuffer.allocateDirect(batchCount * Samples.RECORD_BYTES + 4096);
        batches = new Batch[BATCHES];
        for (int i = 0; i < BATCHES; i++) {
            batches[i] = clientBatch(i);
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) {
        log.rewind();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        long count = parameters.number("count");
        long check = 0;
        long bytes = 0;
        int at = 0;
        for (long done = 0; done < count; done += batchCount) {
            PutResults.Put result = put(batches[at]);
            at = (at + 1) % BATCHES;
            check += result.append.logicsOffset;
            bytes += result.append.wroteBytes;
        }
        return new Rounds.Done(bytes / Samples.RECORD_BYTES, bytes, check);
    }

    private Batch clientBatch(int number) {
        Samples.Message[] messages = Samples.pool(batchCount);
        ByteBuffer body = ByteBuffer.allocate(batchCount * (22 + Samples.BODY_BYTES + 68));
        for (Samples.Message message : messages) {
            byte[] properties = message.propertiesString.getBytes(StandardCharsets.UTF_8);
            body.putInt(22 + message.body.length + properties.length).putInt(0).putInt(0).putInt(message.flag);
            body.putInt(message.body.length).put(message.body).putShort((short) properties.length).put(properties);
        }
        Batch batch = new Batch();
        batch.topic = Samples.topic(number);
        batch.bornTimestamp = System.currentTimeMillis();
        batch.body = body.array();
        return batch;
    }

    private PutResults.Put put(Batch batch) {
        batch.storeTimestamp = System.currentTimeMillis();
        keyBuilder.setLength(0);
        String queueKey = keyBuilder.append(batch.topic).append('-').append(batch.queueId).toString();
        batch.encoded = encode(batch);
        long queueOffset = queueTable.computeIfAbsent(queueKey, key -> 0L);
        PutResults.Append append;
        putLock.lock();
        try {
            batch.storeTimestamp = System.currentTimeMillis();
            append = append(batch, queueOffset);
            if (append.status == PutResults.AppendStatus.END_OF_FILE) {
                log.rewind(); // The rolled-to file is the same warm one.
                append = append(batch, queueOffset);
            }
        } finally {
            putLock.unlock();
        }
        queueTable.put(queueKey, queueOffset + append.messageCount);
        batch.encoded = null;
        return new PutResults.Put(PutResults.PutStatus.PUT_OK, append);
    }

    private ByteBuffer encode(Batch batch) {
        ByteBuffer out = encodeBuffer;
        out.clear();
        batch.physicalOffsets = new int[batchCount];
        ByteBuffer in = ByteBuffer.wrap(batch.body);
        ByteBuffer bornHost = PutResults.hostBytes(Samples.BORN_HOST);
        ByteBuffer storeHost = PutResults.hostBytes(Samples.STORE_HOST);
        byte[] topic = batch.topic.getBytes(StandardCharsets.UTF_8);
        while (in.hasRemaining()) {
            in.getInt();
            in.getInt();
            in.getInt();
            int flag = in.getInt();
            int bodyLength = in.getInt();
            int bodyAt = in.position();
            CRC32 crc = new CRC32();
            crc.update(batch.body, bodyAt, bodyLength);
            in.position(bodyAt + bodyLength);
            short propertiesLength = in.getShort();
            int propertiesAt = in.position();
            in.position(propertiesAt + propertiesLength);
            out.putInt(91 + bodyLength + topic.length + propertiesLength).putInt(LogFile.MAGIC);
            out.putInt((int) (crc.getValue() & 0x7FFFFFFF)).putInt(batch.queueId).putInt(flag).putLong(0).putLong(0);
            bornHost.rewind();
            storeHost.rewind();
            out.putInt(batch.sysFlag).putLong(batch.bornTimestamp).put(bornHost);
            out.putLong(batch.storeTimestamp).put(storeHost).putInt(batch.reconsumeTimes).putLong(0);
            out.putInt(bodyLength).put(batch.body, bodyAt, bodyLength);
            out.put((byte) topic.length).put(topic);
            out.putShort(propertiesLength).put(batch.body, propertiesAt, propertiesLength);
        }
        out.flip();
        return out;
    }

    private PutResults.Append append(Batch batch, long firstQueueOffset) {
        int position = log.wrotePosition;
        ByteBuffer encoded = batch.encoded;
        int total = 0;
        int number = 0;
        while (total < encoded.limit()) {
            int size = encoded.getInt(total);
            if (total + size + 8 > log.size - position) {
                return new PutResults.Append(PutResults.AppendStatus.END_OF_FILE, position, log.size - position,
                    () -> "", batch.storeTimestamp, firstQueueOffset, 0, 0);
            }
            encoded.putLong(total + 20, firstQueueOffset + number);
            encoded.putLong(total + 28, (long) position + total);
            encoded.putLong(total + 56, batch.storeTimestamp);
            batch.physicalOffsets[number++] = position + total;
            total += size;
        }
        encoded.position(0);
        log.sliceForAppend(position).put(encoded);
        log.advance(total);
        log.storeTimestamp = batch.storeTimestamp;
        int[] offsets = batch.physicalOffsets;
        Supplier<String> ids = () -> joined(offsets);
        return new PutResults.Append(PutResults.AppendStatus.PUT_OK, position, total, ids, batch.storeTimestamp,
            firstQueueOffset, number, 0);
    }

    private static String joined(int[] offsets) {
        StringBuilder ids = new StringBuilder(offsets.length * 33);
        for (int offset : offsets) {
            ids.append(ids.length() == 0 ? "" : ",").append(PutResults.messageId(Samples.STORE_HOST, offset));
        }
        return ids.toString();
    }
}
