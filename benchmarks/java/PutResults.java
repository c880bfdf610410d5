import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.function.Supplier;

/** The objects that RocketMQ returns from an append and from a put, one of each per call. */
final class PutResults {
    enum AppendStatus { PUT_OK, END_OF_FILE }

    enum PutStatus { PUT_OK, CREATE_MAPPED_FILE_FAILED }

    static final class Append {
        final AppendStatus status;
        final long wroteOffset;
        final int wroteBytes;
        final Supplier<String> messageId;
        final long storeTimestamp;
        final long logicsOffset;
        final int messageCount;
        final long pagecacheMs;

        Append(AppendStatus status, long wroteOffset, int wroteBytes, Supplier<String> messageId, long storeTimestamp,
               long logicsOffset, int messageCount, long pagecacheMs) {
            this.status = status;
            this.wroteOffset = wroteOffset;
            this.wroteBytes = wroteBytes;
            this.messageId = messageId;
            this.storeTimestamp = storeTimestamp;
            this.logicsOffset = logicsOffset;
            this.messageCount = messageCount;
            this.pagecacheMs = pagecacheMs;
        }
    }

    static final class Put {
        final PutStatus status;
        final Append append;

        Put(PutStatus status, Append append) {
            this.status = status;
            this.append = append;
        }
    }

    /** The offset message id: store host, port, physical offset, in hexadecimal. */
    static String messageId(InetSocketAddress host, long physicalOffset) {
        ByteBuffer id = ByteBuffer.allocate(16);
        id.put(host.getAddress().getAddress()).putInt(host.getPort()).putLong(physicalOffset);
        return HexFormat.of().withUpperCase().formatHex(id.array());
    }

    /** Four address bytes and the port, in a small heap buffer as the message object returns it. */
    static ByteBuffer hostBytes(InetSocketAddress host) {
        ByteBuffer bytes = ByteBuffer.allocate(8);
        bytes.put(host.getAddress().getAddress(), 0, 4).putInt(host.getPort());
        bytes.flip();
        return bytes;
    }

    private PutResults() {
    }
}
