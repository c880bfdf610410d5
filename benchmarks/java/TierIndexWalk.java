import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;

/**
 * Rearranges an open tier index file into its compacted form in RocketMQ's shape: slot by slot along the chains, 28
 * bytes of each item through a heap array, into a mapped file.
 *
 * prepare source=FILE out=FILE slots=S capacity=N items=COUNT; run fresh=0|1 (into the mapped file as it is, or emptied).
 */
public final class TierIndexWalk implements Rounds.Work {
    private static final int HEADER_BYTES = 28;
    private static final int SLOT_BYTES = 8;
    private static final int ITEM_BYTES = 32;
    private static final int COMPACTED_ITEM_BYTES = 28;
    private static final int MAGIC_END = 0xBCC50285;

    private MappedByteBuffer source;
    private MappedByteBuffer out;
    private String outPath;
    private int slots;
    private int items;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new TierIndexWalk());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        slots = (int) parameters.number("slots");
        items = (int) parameters.number("items");
        long capacity = parameters.number("capacity");
        outPath = parameters.text("out");
        source = map(parameters.text("source"), HEADER_BYTES + (long) SLOT_BYTES * slots + ITEM_BYTES * capacity);
        out = map(outPath, outBytes());
        for (int at = 0; at < source.capacity(); at += 4096) {
            source.get(at);
        }
    }

    private long outBytes() {
        return HEADER_BYTES + (long) SLOT_BYTES * slots + (long) COMPACTED_ITEM_BYTES * items;
    }

    private static MappedByteBuffer map(String path, long size) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(new File(path), "rw")) {
            if (file.length() != size) {
                file.setLength(size);
            }
            return file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, size);
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        if (parameters.number("fresh") == 1) {
            LogFile.cool(outPath);
        }
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        byte[] payload = new byte[COMPACTED_ITEM_BYTES];
        int firstItem = HEADER_BYTES + SLOT_BYTES * slots;
        int position = firstItem;
        int moved = 0;
        for (int slot = 0; slot < slots; slot++) {
            int slotAt = HEADER_BYTES + SLOT_BYTES * slot;
            int number = source.getInt(slotAt);
            int start = position;
            while (number > 0) {
                int itemAt = firstItem + ITEM_BYTES * number;
                source.position(itemAt);
                source.get(payload);
                int previous = source.getInt(itemAt + COMPACTED_ITEM_BYTES);
                out.position(position);
                out.put(payload);
                position += COMPACTED_ITEM_BYTES;
                number = previous;
                moved++;
            }
            out.putInt(slotAt, start);
            out.putInt(slotAt + 4, position - start);
        }
        out.putInt(0, MAGIC_END);
        out.putLong(4, source.getLong(4));
        out.putLong(12, source.getLong(12));
        out.putInt(20, source.getInt(20));
        out.putInt(24, source.getInt(24));
        if (moved != items) {
            throw new IllegalStateException("expected " + items + " items along the chains, found " + moved);
        }
        return new Rounds.Done(moved, outBytes(), position);
    }
}
