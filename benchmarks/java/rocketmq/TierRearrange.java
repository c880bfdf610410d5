import java.nio.ByteBuffer;
import java.nio.file.Path;
import org.apache.rocketmq.logging.ch.qos.logback.classic.Level;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.index.IndexStoreFile;

/**
 * IndexStoreFile.doCompaction of a full index file, into a new mapped file as RocketMQ does it.
 *
 * prepare store=DIR begin=MS slots=S capacity=N; the file is DIR/tiered_index_file/MS and has N - 1 items
 */
public final class TierRearrange implements Rounds.Work {
    private MessageStoreConfig config;
    private long begin;
    private String store;
    private IndexStoreFile file;

    public static void main(String[] arguments) {
        TierNode.serve(new TierRearrange());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        ((org.apache.rocketmq.logging.ch.qos.logback.classic.Logger)
            LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.WARN);
        store = parameters.text("store");
        begin = parameters.number("begin");
        config = new MessageStoreConfig();
        config.setStorePathRootDir(store);
        config.setTieredStoreIndexFileMaxHashSlotNum((int) parameters.number("slots"));
        config.setTieredStoreIndexFileMaxIndexNum((int) parameters.number("capacity"));
        file = new IndexStoreFile(config, begin);
        if (file.getIndexItemCount() != config.getTieredStoreIndexFileMaxIndexNum() - 1) {
            throw new IllegalStateException("expected a full file, found " + file.getIndexItemCount() + " items");
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        TierNode.delete(Path.of(store, "tiered_index_file", "compacting")); // Its map goes with the next collection.
        System.gc();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        ByteBuffer compacted = file.doCompaction();
        return new Rounds.Done(file.getIndexItemCount(), compacted.limit(), compacted.getInt(0));
    }
}
