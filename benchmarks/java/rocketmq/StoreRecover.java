import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.stream.Stream;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Opening a store that was closed, or that crashed: `load` (which recovers) and `start`.
 *
 * prepare dir= saved= log_size= records= crashed=0|1; run. `saved` holds everything but the commit log as the crash left
 * it; it is put back before every round.
 */
public final class StoreRecover implements Rounds.Work {
    private DefaultMessageStore store;
    private MessageStoreConfig config;
    private Path directory;
    private Path saved;
    private long records;
    private boolean crashed;

    public static void main(String[] arguments) {
        StoreRecover work = new StoreRecover();
        StoreSetup.serve(work, work::close);
    }

    @Override
    public void prepare(Rounds.Parameters parameters) {
        directory = Path.of(parameters.text("dir"));
        saved = Path.of(parameters.text("saved"));
        records = parameters.number("records");
        crashed = parameters.number("crashed") == 1;
        config = StoreSetup.settings(parameters);
        config.setMessageIndexSafe(true);
        config.setWarmMapedFileEnable(false);
    }

    private void close() {
        if (store != null) {
            StoreSetup.close(store);
            store = null;
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        boolean first = store == null;
        close();
        if (crashed || first) {
            for (String name : new String[] {"consumequeue", "index", "checkpoint", "abort", "lock"}) {
                StoreSetup.remove(directory.resolve(name).toString());
            }
            copy(saved, directory);
        }
        StoreSetup.settle();
    }

    private static void copy(Path from, Path to) throws Exception {
        try (Stream<Path> paths = Files.walk(from)) {
            for (Path path : paths.toList()) {
                Path target = to.resolve(from.relativize(path).toString());
                if (Files.isDirectory(path)) {
                    Files.createDirectories(target);
                } else {
                    Files.copy(path, target, StandardCopyOption.REPLACE_EXISTING);
                }
            }
        }
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) throws Exception {
        store = StoreSetup.start(config);
        long found = 0;
        for (int i = 0; i < StoreSamples.TOPICS * StoreSamples.QUEUES; i++) {
            found += store.getMaxOffsetInQueue(StoreSamples.topic(i), StoreSamples.queue(i));
        }
        if (found != records) {
            throw new IllegalStateException("expected " + records + " units after recovery, found " + found);
        }
        return new Rounds.Done(records, store.getMaxPhyOffset(), found);
    }
}
