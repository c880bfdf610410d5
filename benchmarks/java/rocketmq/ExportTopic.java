import java.io.BufferedOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What users of RocketMQ do to have a topic in Spark, since its connector ends at Spark 2.3: a consumer that follows the
 * topic and writes files that Spark reads by itself, here JSON lines with the body in base64.
 *
 * prepare nameServer=; run topic= messages= file= writes so many messages and closes the file. It may be started before
 * the first message is sent. Topic and message ids hold nothing that JSON would want escaped.
 */
final class ExportTopic implements Rounds.Work {
    /** More than this a broker gives at no pull: its maxTransferCountOnMessageInMemory. */
    private static final int PULL_MESSAGES = 32;
    private static final int POLL_MS = 100;
    private DefaultLitePullConsumer consumer;

    public static void main(String[] arguments) {
        try {
            Rounds.serve(new ExportTopic());
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive.
        }
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        System.setProperty("rocketmq.serialize.type", "ROCKETMQ");
        consumer = new DefaultLitePullConsumer("exporters");
        consumer.setNamesrvAddr(parameters.text("nameServer"));
        consumer.setAutoCommit(false); // Each topic is read once, from its beginning.
        consumer.setPullBatchSize(PULL_MESSAGES);
        consumer.start();
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        var queues = consumer.fetchMessageQueues(parameters.text("topic"));
        consumer.assign(queues);
        for (var queue : queues) {
            consumer.seekToBegin(queue);
        }
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) throws Exception {
        long wanted = parameters.number("messages");
        long written = 0;
        long bytes = 0;
        Path file = Path.of(parameters.text("file"));
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20)) {
            while (written < wanted) {
                for (MessageExt message : consumer.poll(POLL_MS)) {
                    write(out, message);
                    written++;
                    bytes += message.getBody().length;
                }
            }
        }
        return new Rounds.Done(written, bytes, bytes);
    }

    private static void write(OutputStream out, MessageExt message) throws Exception {
        String head = "{\"topic\":\"" + message.getTopic() + "\",\"queueId\":" + message.getQueueId() + ",\"queueOffset\":"
            + message.getQueueOffset() + ",\"msgId\":\"" + message.getMsgId() + "\",\"bornTimestamp\":"
            + message.getBornTimestamp() + ",\"storeTimestamp\":" + message.getStoreTimestamp() + ",\"body\":\"";
        out.write(head.getBytes(StandardCharsets.ISO_8859_1));
        out.write(Base64.getEncoder().encode(message.getBody()));
        out.write('"');
        out.write('}');
        out.write('\n');
    }
}
