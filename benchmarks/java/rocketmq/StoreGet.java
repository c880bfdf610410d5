import java.nio.ByteBuffer;
import java.util.Random;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Gets from random queues and offsets, copied into one block of bytes as a broker does before it answers
 * (transferMsgByHeap, its default).
 *
 * prepare dir= log_dir= log_size= batch=; run pulls= seed=
 */
public final class StoreGet implements Rounds.Work {
    private DefaultMessageStore store;
    private int batch;
    private String[] topics;
    private int[] queues;
    private long[] offsets;

    public static void main(String[] arguments) {
        StoreSetup.serve(new StoreGet(), () -> {
        });
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        batch = (int) parameters.number("batch");
        MessageStoreConfig config = StoreSetup.settings(parameters);
        config.setStorePathCommitLog(parameters.text("log_dir"));
        StoreSetup.allowLargePages(config);
        store = StoreSetup.load(config);
        new StoreDispatch.Reput(store).dispatchFrom(0);
        store.start();
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        int pulls = (int) parameters.number("pulls");
        Random random = new Random(parameters.number("seed"));
        topics = new String[pulls];
        queues = new int[pulls];
        offsets = new long[pulls];
        for (int i = 0; i < pulls; i++) {
            int queue = random.nextInt(StoreSamples.TOPICS * StoreSamples.QUEUES);
            topics[i] = StoreSamples.topic(queue);
            queues[i] = StoreSamples.queue(queue);
            offsets[i] = random.nextInt((int) store.getMaxOffsetInQueue(topics[i], queues[i]) - batch);
        }
        StoreSetup.settle();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        long messages = 0;
        long bytes = 0;
        long check = 0;
        for (int i = 0; i < topics.length; i++) {
            GetMessageResult result = store.getMessage("bench-group", topics[i], queues[i], offsets[i], batch, null);
            if (result.getStatus() != GetMessageStatus.FOUND || result.getMessageCount() != batch) {
                throw new IllegalStateException("expected " + batch + " messages, found " + result);
            }
            ByteBuffer page = ByteBuffer.allocate(result.getBufferTotalSize());
            for (ByteBuffer each : result.getMessageBufferList()) {
                page.put(each);
            }
            result.release();
            messages += batch;
            bytes += page.position();
            check += page.get(page.position() - 1);
        }
        return new Rounds.Done(messages, bytes, check);
    }
}
