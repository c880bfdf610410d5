import java.nio.ByteBuffer;
import java.util.zip.CRC32;

/**
 * Recovery walk with CRC of every body, lean on purpose: absolute reads, no objects, no Strings. This is about as fast as
 * Java can do it, not what RocketMQ does.
 *
 * prepare log=FILE; run (walks the whole file).
 */
public final class RecoverLoop implements Rounds.Work {
    private LogFile log;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new RecoverLoop());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        log = LogFile.openWarm(parameters.text("log"));
    }

    @Override
    public void reset(Rounds.Parameters parameters) {
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        ByteBuffer buffer = log.mapped.duplicate();
        CRC32 crc = new CRC32();
        int limit = log.size;
        int at = 0;
        long count = 0;
        while (at + 8 <= limit) {
            int size = buffer.getInt(at);
            int magic = buffer.getInt(at + 4);
            if (magic != LogFile.MAGIC || size < 91 || size > limit - at) {
                break;
            }
            int bodyLength = buffer.getInt(at + 84);
            int bodyAt = at + 88;
            if (bodyLength < 0 || bodyLength > size - 91) {
                break;
            }
            int topicLength = buffer.get(bodyAt + bodyLength);
            if (topicLength < 0 || topicLength > size - 91 - bodyLength) {
                break;
            }
            int propertiesLength = buffer.getShort(bodyAt + bodyLength + 1 + topicLength);
            if (91 + bodyLength + topicLength + propertiesLength != size) {
                break;
            }
            crc.reset();
            buffer.limit(bodyAt + bodyLength).position(bodyAt);
            crc.update(buffer);
            buffer.limit(limit);
            if ((int) (crc.getValue() & 0x7FFFFFFF) != buffer.getInt(at + 8)) {
                break;
            }
            at += size;
            count++;
        }
        return new Rounds.Done(count, at, at);
    }
}
