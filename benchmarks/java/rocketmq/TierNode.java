import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.logging.ch.qos.logback.classic.Level;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.core.MessageStoreDispatcherImpl;
import org.apache.rocketmq.tieredstore.core.MessageStoreFetcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;
import org.apache.rocketmq.tieredstore.index.IndexFile;
import org.apache.rocketmq.tieredstore.index.IndexStoreFile;
import org.apache.rocketmq.tieredstore.index.IndexStoreService;

/**
 * RocketMQ's tiered store over RocketMQ's own store, as a broker has it, with the PosixFileSegment back end.
 *
 * The local store stays open; the tier above it can be thrown away and begun anew, which a broker never does. A round
 * of the dispatcher is what its thread does every 20 seconds: one call for each queue, which then goes on by itself.
 */
final class TierNode extends TieredMessageStore {
    static final String BROKER = "broker-a";
    private static final String CLUSTER = "DefaultCluster";

    private TierNode(MessageStorePluginContext context, DefaultMessageStore local) {
        super(context, local);
    }

    /** Serves rounds and ends the process, whatever happens: RocketMQ's pools would keep it alive for ever. */
    static void serve(Rounds.Work work) {
        int status = 0;
        try {
            Rounds.serve(work);
        } catch (Throwable failure) {
            failure.printStackTrace();
            status = 1;
        }
        System.exit(status);
    }

    /** The local store of a directory that was filled and closed before. */
    static DefaultMessageStore openLocal(Rounds.Parameters parameters) throws Exception {
        // A broker logs to files at INFO; a batch in the tier is one line or two. Nobody is to wait for a console here.
        var root = (org.apache.rocketmq.logging.ch.qos.logback.classic.Logger)
            LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME);
        root.setLevel(Level.WARN);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(parameters.text("store"));
        config.setStorePathCommitLog(parameters.text("store") + "/commitlog");
        config.setMappedFileSizeCommitLog((int) parameters.number("log_bytes"));
        config.setMappedFileSizeConsumeQueue((int) parameters.number("queue_bytes"));
        config.setDiskMaxUsedSpaceRatio(95);
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(CLUSTER, true), (a, b, c, d, e, f, g) -> { }, broker(), new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ refused the local store in " + parameters.text("store"));
        }
        return store;
    }

    private static BrokerConfig broker() {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName(BROKER);
        config.setBrokerClusterName(CLUSTER);
        return config;
    }

    /** A new tier above a local store: nothing of an earlier one is left. */
    static TierNode begin(DefaultMessageStore local, Rounds.Parameters parameters) throws Exception {
        String store = parameters.text("store");
        for (String path : List.of(parameters.text("tier"), store + "/tiered_index_file",
            store + "/config/tieredStoreMetadata.json", store + "/config/tieredStoreMetadata.json.bak")) {
            delete(Path.of(path));
        }
        new File(store + "/tiered_index_file").mkdirs();
        Properties settings = new Properties();
        settings.put("brokerName", BROKER);
        settings.put("brokerClusterName", CLUSTER);
        settings.put("storePathRootDir", store);
        settings.put("tieredStoreFilePath", parameters.text("tier"));
        settings.put("tieredBackendServiceProvider", "org.apache.rocketmq.tieredstore.provider.PosixFileSegment");
        settings.put("tieredStorageLevel", "FORCE");
        // What is older than this is uploaded without waiting for more: all of it, when a round begins.
        settings.put("tieredStoreGroupCommitTimeout", "1");
        settings.put("tieredStoreIndexFileMaxHashSlotNum", parameters.text("slots"));
        settings.put("tieredStoreIndexFileMaxIndexNum", parameters.text("capacity"));
        Configuration configuration = new Configuration(LoggerFactory.getLogger("bench"));
        configuration.registerConfig(settings);
        TierNode node = new TierNode(new MessageStorePluginContext(
            local.getMessageStoreConfig(), local.getBrokerStatsManager(), null, broker(), configuration), local);
        node.flatFileStore.load();
        node.indexService.start();
        return node;
    }

    static void delete(Path path) throws IOException {
        if (Files.exists(path)) {
            try (Stream<Path> all = Files.walk(path)) {
                for (Path each : (Iterable<Path>) all.sorted(Comparator.reverseOrder())::iterator) {
                    Files.delete(each);
                }
            }
        }
    }

    /** Everything that waits goes up, from no queue in the tier until each has all of it, keys indexed. */
    void upload(int topics, int queues, long messages) throws Exception {
        for (int topic = 0; topic < topics; topic++) {
            for (int queue = 0; queue < queues; queue++) {
                FlatMessageFile file =
                    flatFileStore.computeIfAbsent(new MessageQueue(TierData.topic(topic), BROKER, queue));
                file.initOffset(0);
            }
        }
        List<FlatMessageFile> files = flatFileStore.deepCopyFlatFileToList();
        MessageStoreDispatcherImpl impl = (MessageStoreDispatcherImpl) dispatcher;
        files.forEach(impl::dispatchWithSemaphore);
        long committed = 0;
        for (long turn = 1; committed < messages || indexed() < messages; turn++) {
            Thread.sleep(1);
            committed = files.stream().mapToLong(FlatMessageFile::getConsumeQueueCommitOffset).sum();
            if (turn % 1000 == 0) {
                files.forEach(impl::dispatchWithSemaphore); // Its thread would come back, too, for what gave up.
            }
        }
    }

    private long indexed() {
        return ((IndexStoreService) indexService).getTimeStoreTable().values().stream()
            .mapToLong(file -> ((IndexStoreFile) file).getIndexItemCount()).sum();
    }

    /** The index file that is being written, compacted and in the tier. */
    void uploadIndex() throws Exception {
        IndexStoreService service = (IndexStoreService) indexService;
        service.forceUpload();
        if (service.getTimeStoreTable().values().stream()
            .noneMatch(file -> file.getFileStatus() == IndexFile.IndexStatusEnum.UPLOAD)) {
            throw new IllegalStateException("expected an index file in the tier, found none");
        }
    }

    /** What was read before is forgotten. */
    void forget() {
        ((MessageStoreFetcherImpl) fetcher).getFetcherCache().invalidateAll();
    }

    /** Ends the tier and leaves the local store open. The index is compacted and uploaded on the way. */
    void end() {
        dispatcher.shutdown();
        indexService.shutdown();
        flatFileStore.shutdown();
        storeExecutor.shutdown();
    }
}
