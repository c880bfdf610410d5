import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.concurrent.atomic.AtomicIntegerFieldUpdater;
import java.util.concurrent.atomic.AtomicLong;

/** One mapped file: a wrote position that is published last, reference-counted slices for readers. */
final class LogFile {
    static final int MAGIC = 0xDAA320A7;
    static final int BLANK_MAGIC = 0xCBD43194;
    private static final int PAGE_BYTES = 4096;
    private static final AtomicIntegerFieldUpdater<LogFile> WROTE =
        AtomicIntegerFieldUpdater.newUpdater(LogFile.class, "wrotePosition");

    final MappedByteBuffer mapped;
    final int size;
    final AtomicLong references = new AtomicLong(1);
    volatile int wrotePosition;
    volatile long storeTimestamp;

    private LogFile(MappedByteBuffer mapped, int size) {
        this.mapped = mapped;
        this.size = size;
    }

    /** A new file whose every page was written once, so that no round pays for page faults. */
    static LogFile createWarm(String path, long size) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            file.setLength(size);
            LogFile log = new LogFile(file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, size), (int) size);
            for (int at = 0; at < log.size; at += PAGE_BYTES) {
                log.mapped.put(at, (byte) 0);
            }
            return log;
        }
    }

    /** An existing file, every page touched once. */
    static LogFile openWarm(String path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            long size = file.length();
            LogFile log = new LogFile(file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, size), (int) size);
            int sum = 0;
            for (int at = 0; at < log.size; at += PAGE_BYTES) {
                sum += log.mapped.get(at);
            }
            log.storeTimestamp = sum;
            log.wrotePosition = log.size;
            return log;
        }
    }

    /** Drop the file's pages under the map, so that the next round meets them as a fresh file's. */
    static void cool(String path) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
            long size = file.length();
            file.setLength(0);
            file.setLength(size);
        }
    }

    void advance(int bytes) {
        WROTE.addAndGet(this, bytes);
    }

    void rewind() {
        WROTE.set(this, 0);
    }

    /** The rest of the file from the wrote position, as the append callback receives it. */
    ByteBuffer sliceForAppend(int position) {
        ByteBuffer buffer = mapped.slice();
        buffer.position(position);
        return buffer;
    }

    /** A slice for a reader, or null when it passes the wrote position. */
    Selected select(int position, int bytes) {
        if (position + bytes > wrotePosition || references.getAndIncrement() <= 0) {
            return null;
        }
        ByteBuffer buffer = mapped.slice();
        buffer.position(position);
        ByteBuffer part = buffer.slice();
        part.limit(bytes);
        return new Selected(position, part, bytes, this);
    }

    static final class Selected {
        final long startOffset;
        final ByteBuffer buffer;
        final int size;
        private LogFile file;

        Selected(long startOffset, ByteBuffer buffer, int size, LogFile file) {
            this.startOffset = startOffset;
            this.buffer = buffer;
            this.size = size;
            this.file = file;
        }

        void release() {
            if (file != null) {
                file.references.decrementAndGet();
                file = null;
            }
        }
    }
}
