import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A hash index file in RocketMQ's layout: 40 bytes of header, 5,000,000 slots of 4 bytes, 20,000,000 entries of 20.
 * Header fields live twice, as atomics and in the map, and both are written on every put.
 */
final class IndexFile {
    static final int SLOTS = 5_000_000;
    static final int ENTRIES = 20_000_000;
    private static final int HEADER_BYTES = 40;
    private static final int SLOT_BYTES = 4;
    private static final int ENTRY_BYTES = 20;

    private final String path;
    private final MappedByteBuffer map;
    private final AtomicLong beginTimestamp = new AtomicLong();
    private final AtomicLong endTimestamp = new AtomicLong();
    private final AtomicLong beginPhysicalOffset = new AtomicLong();
    private final AtomicLong endPhysicalOffset = new AtomicLong();
    private final AtomicInteger hashSlotCount = new AtomicInteger();
    private final AtomicInteger indexCount = new AtomicInteger(1);

    private IndexFile(String path, MappedByteBuffer map) {
        this.path = path;
        this.map = map;
    }

    /** A new file; the slots and the first {@code entries} entries are touched, so that rounds meet no page faults. */
    static IndexFile createWarm(String path, long entries) throws IOException {
        long size = HEADER_BYTES + (long) SLOTS * SLOT_BYTES + (long) ENTRIES * ENTRY_BYTES;
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            file.setLength(size);
            IndexFile index = new IndexFile(path, file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, size));
            long used = HEADER_BYTES + (long) SLOTS * SLOT_BYTES + (entries + 1) * ENTRY_BYTES;
            for (long at = 0; at < Math.min(used, size); at += 4096) {
                index.map.put((int) at, (byte) 0);
            }
            return index;
        }
    }

    /** Empty again, as a fresh file or with its pages still in place. */
    void clear(boolean fresh) throws IOException {
        if (fresh) {
            LogFile.cool(path);
        } else {
            for (int at = 0; at < HEADER_BYTES + SLOTS * SLOT_BYTES; at += 4) {
                map.putInt(at, 0);
            }
        }
        beginTimestamp.set(0);
        endTimestamp.set(0);
        beginPhysicalOffset.set(0);
        endPhysicalOffset.set(0);
        hashSlotCount.set(0);
        indexCount.set(1);
    }

    int count() {
        return indexCount.get();
    }

    long endPhysicalOffset() {
        return endPhysicalOffset.get();
    }

    boolean putKey(String key, long physicalOffset, long storeTimestamp) {
        if (indexCount.get() >= ENTRIES) {
            return false;
        }
        int hash = Math.abs(key.hashCode());
        return putHash(hash < 0 ? 0 : hash, physicalOffset, storeTimestamp);
    }

    boolean putHash(int keyHash, long physicalOffset, long storeTimestamp) {
        if (indexCount.get() >= ENTRIES) {
            return false;
        }
        int slotAt = HEADER_BYTES + keyHash % SLOTS * SLOT_BYTES;
        int slotValue = map.getInt(slotAt);
        if (slotValue <= 0 || slotValue > indexCount.get()) {
            slotValue = 0;
        }
        int entryAt = HEADER_BYTES + SLOTS * SLOT_BYTES + indexCount.get() * ENTRY_BYTES;
        map.putInt(entryAt, keyHash);
        map.putLong(entryAt + 4, physicalOffset);
        map.putInt(entryAt + 12, (int) timeDifference(storeTimestamp));
        map.putInt(entryAt + 16, slotValue);
        map.putInt(slotAt, indexCount.get());
        if (indexCount.get() <= 1) {
            set(beginPhysicalOffset, 16, physicalOffset);
            set(beginTimestamp, 0, storeTimestamp);
        }
        if (slotValue == 0) {
            map.putInt(32, hashSlotCount.incrementAndGet());
        }
        map.putInt(36, indexCount.incrementAndGet());
        set(endPhysicalOffset, 24, physicalOffset);
        set(endTimestamp, 8, storeTimestamp);
        return true;
    }

    private long timeDifference(long storeTimestamp) {
        long seconds = (storeTimestamp - beginTimestamp.get()) / 1000;
        if (beginTimestamp.get() <= 0 || seconds < 0) {
            return 0;
        }
        return Math.min(seconds, Integer.MAX_VALUE);
    }

    private void set(AtomicLong field, int at, long value) {
        field.set(value);
        map.putLong(at, value);
    }
}
