import java.io.IOException;
import java.nio.ByteBuffer;

/** One consume queue of one mapped file: a unit is assembled in a small buffer, checked, and copied as bytes. */
final class QueueFile {
    static final int UNIT_BYTES = 20;

    final LogFile file;
    private final String path;
    private final ByteBuffer unit = ByteBuffer.allocate(UNIT_BYTES);
    private long maxPhysicalOffset = -1;

    QueueFile(String path, long units) throws IOException {
        this.path = path;
        file = LogFile.createWarm(path, units * UNIT_BYTES);
    }

    /** Empty again, as a fresh file or with its pages still in place. */
    void clear(boolean fresh) throws IOException {
        if (fresh) {
            LogFile.cool(path);
        }
        file.rewind();
        maxPhysicalOffset = -1;
    }

    boolean put(long physicalOffset, int size, long tagsCode, long queueOffset) {
        if (physicalOffset + size <= maxPhysicalOffset) {
            return true; // Dispatched before.
        }
        unit.flip();
        unit.limit(UNIT_BYTES);
        unit.putLong(physicalOffset);
        unit.putInt(size);
        unit.putLong(tagsCode);
        long expected = queueOffset * UNIT_BYTES;
        int position = file.wrotePosition;
        if (expected != position || position + UNIT_BYTES > file.size) {
            return false;
        }
        maxPhysicalOffset = physicalOffset + size;
        byte[] data = unit.array();
        ByteBuffer target = file.mapped.slice();
        target.position(position);
        target.put(data, 0, UNIT_BYTES);
        file.advance(UNIT_BYTES);
        return true;
    }
}
