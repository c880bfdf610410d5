import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Puts of single messages by several threads, or of batches by one, into RocketMQ's store; its dispatch runs.
 *
 * prepare dir= log_size= flush= body= threads= list= dispatched=0|1; run count=
 * Under ASYNC_FLUSH every round has a new store whose first files are warm; under SYNC_FLUSH all rounds have one.
 */
public final class StorePut implements Rounds.Work {
    private static final int POOL = 1024;
    private static final int BATCHES = 8;
    private static final int OVERHEAD = 91 + 14 + StoreSamples.PROPERTIES_BYTES;

    private DefaultMessageStore store;
    private MessageExtBrokerInner[][] pools;
    private MessageExtBatch[] batches;
    private MessageStoreConfig config;
    private String directory;
    private int body;
    private int threads;
    private int list;
    private boolean untilDispatched;

    public static void main(String[] arguments) {
        StorePut work = new StorePut();
        StoreSetup.serve(work, work::drop);
    }

    @Override
    public void prepare(Rounds.Parameters parameters) {
        directory = parameters.text("dir");
        body = (int) parameters.number("body");
        threads = (int) parameters.number("threads");
        list = (int) parameters.number("list");
        untilDispatched = parameters.number("dispatched") == 1;
        config = StoreSetup.settings(parameters);
        config.setFlushDiskType(FlushDiskType.valueOf(parameters.text("flush")));
        int pool = body > 4096 ? 64 : POOL;
        pools = new MessageExtBrokerInner[threads][];
        for (int i = 0; i < threads; i++) {
            pools[i] = StoreSamples.pool(42 + i, pool, body);
        }
        if (list > 0) {
            batches = new MessageExtBatch[BATCHES];
            for (int i = 0; i < BATCHES; i++) {
                batches[i] = StoreSamples.batch(i, list, body);
                config.setMaxMessageSize(Math.max(config.getMaxMessageSize(), 2 * batches[i].getBody().length));
            }
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        if (store == null || config.getFlushDiskType() == FlushDiskType.ASYNC_FLUSH) {
            drop();
            store = StoreSetup.start(config);
            for (int i = 0; i < StoreSamples.TOPICS * StoreSamples.QUEUES; i++) {
                expectOk(store.putMessage(pools[0][i % pools[0].length]));
            }
        }
        StoreSetup.awaitDispatch(store);
        StoreSetup.settle();
    }

    private void drop() throws Exception {
        if (store != null) {
            StoreSetup.close(store);
            store.destroy();
            store = null;
            StoreSetup.remove(directory);
        }
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) throws Exception {
        long count = parameters.number("count");
        if (list > 0) {
            return putBatches(count / list);
        }
        long each = count / threads;
        CountDownLatch done = new CountDownLatch(threads);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (MessageExtBrokerInner[] pool : pools) {
            Thread thread = new Thread(() -> {
                try {
                    put(pool, each);
                } catch (Throwable wrong) {
                    failure.set(wrong);
                } finally {
                    done.countDown();
                }
            });
            thread.start();
        }
        done.await();
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        if (untilDispatched) {
            StoreSetup.awaitDispatch(store);
        }
        return new Rounds.Done(each * threads, each * threads * (OVERHEAD + body), store.getMaxPhyOffset());
    }

    private void put(MessageExtBrokerInner[] pool, long count) {
        int at = 0;
        for (long i = 0; i < count; i++) {
            expectOk(store.putMessage(pool[at]));
            at = at + 1 == pool.length ? 0 : at + 1;
        }
    }

    private Rounds.Done putBatches(long count) {
        for (int i = 0; i < count; i++) {
            expectOk(store.putMessages(batches[i % BATCHES]));
        }
        return new Rounds.Done(count * list, count * list * (OVERHEAD + body), store.getMaxPhyOffset());
    }

    private static void expectOk(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("RocketMQ answered a put with " + result.getPutMessageStatus());
        }
    }
}
