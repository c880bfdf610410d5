import java.lang.reflect.Field;
import java.lang.reflect.Method;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Dispatch of a whole commit log to consume queues and key index: `ReputMessageService.doReput` of the real store on the
 * calling thread, from offset zero into queue and index files that do not exist yet.
 *
 * prepare dir= log_dir= log_size= records=; run
 */
public final class StoreDispatch implements Rounds.Work {
    private DefaultMessageStore store;
    private Reput reput;
    private long records;

    /** The store's own reput service, which is no public class. */
    static final class Reput {
        private final Object service;
        private final Method round;
        private final Method from;
        private final DefaultMessageStore store;

        Reput(DefaultMessageStore store) throws ReflectiveOperationException {
            Field field = DefaultMessageStore.class.getDeclaredField("reputMessageService");
            field.setAccessible(true);
            this.store = store;
            service = field.get(store);
            round = service.getClass().getMethod("doReput");
            from = service.getClass().getMethod("setReputFromOffset", long.class);
            round.setAccessible(true);
            from.setAccessible(true);
        }

        /** Dispatches everything; the end of the log. */
        long dispatchFrom(long offset) throws ReflectiveOperationException {
            from.invoke(service, offset);
            do {
                round.invoke(service);
            } while (store.dispatchBehindBytes() > 0);
            return store.getMaxPhyOffset();
        }
    }

    public static void main(String[] arguments) {
        StoreSetup.serve(new StoreDispatch(), () -> {
        });
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        records = parameters.number("records");
        MessageStoreConfig config = StoreSetup.settings(parameters);
        config.setStorePathCommitLog(parameters.text("log_dir"));
        store = StoreSetup.load(config);
        reput = new Reput(store);
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        store.getConsumeQueueStore().destroy();
        Field index = DefaultMessageStore.class.getDeclaredField("indexService");
        index.setAccessible(true);
        ((org.apache.rocketmq.store.index.IndexService) index.get(store)).destroy();
        StoreSetup.settle();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) throws Exception {
        long bytes = reput.dispatchFrom(0);
        long found = 0;
        for (int i = 0; i < StoreSamples.TOPICS * StoreSamples.QUEUES; i++) {
            found += store.getMaxOffsetInQueue(StoreSamples.topic(i), StoreSamples.queue(i));
        }
        if (found != records) {
            throw new IllegalStateException("expected " + records + " units, found " + found);
        }
        return new Rounds.Done(records, bytes, found);
    }
}
