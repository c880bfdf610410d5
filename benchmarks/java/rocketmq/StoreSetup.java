import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's own store, embedded. Its settings are its defaults but for what a request says and for these: files of the
 * log are warmed as TierMQ's are, the disk may be fuller, the port for replicas is any, and nothing is logged (a broker
 * logs; without it RocketMQ is faster here, never slower).
 */
final class StoreSetup {
    private static final int TRANSFER_COUNT = 100_000;
    private static final int TRANSFER_BYTES = 1 << 30;

    /** Serves rounds and ends the program, also when a round failed: threads of a store would keep it alive. */
    static void serve(Rounds.Work work, AutoCloseable atEnd) {
        int code = 0;
        try {
            Rounds.serve(work);
            atEnd.close();
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code);
    }

    static void silence() {
        var factory = (org.apache.rocketmq.logging.ch.qos.logback.classic.LoggerContext)
            org.apache.rocketmq.logging.org.slf4j.LoggerFactory.getILoggerFactory();
        for (var logger : factory.getLoggerList()) {
            logger.setLevel(org.apache.rocketmq.logging.ch.qos.logback.classic.Level.OFF);
        }
    }

    static MessageStoreConfig settings(Rounds.Parameters parameters) {
        MessageStoreConfig config = new MessageStoreConfig();
        String root = parameters.text("dir");
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog((int) parameters.number("log_size"));
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setWarmMapedFileEnable(true);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setHaListenPort(0);
        return config;
    }

    /** So many messages per get as are asked for. */
    static void allowLargePages(MessageStoreConfig config) {
        config.setMaxTransferCountOnMessageInMemory(TRANSFER_COUNT);
        config.setMaxTransferBytesOnMessageInMemory(TRANSFER_BYTES);
    }

    /** A store whose files are loaded and recovered, and whose threads do not run. */
    static DefaultMessageStore load(MessageStoreConfig config) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerClusterName("DefaultCluster");
        BrokerStatsManager statistics = new BrokerStatsManager(broker.getBrokerClusterName(), false);
        DefaultMessageStore store =
            new DefaultMessageStore(config, statistics, null, broker, new ConcurrentHashMap<>());
        silence();
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ could not load the store in " + config.getStorePathRootDir());
        }
        return store;
    }

    static DefaultMessageStore start(MessageStoreConfig config) throws Exception {
        DefaultMessageStore store = load(config);
        store.start();
        return store;
    }

    /** Shuts down; the interrupt cuts the three seconds short that a shutdown sleeps first. */
    static void close(DefaultMessageStore store) {
        Thread.currentThread().interrupt();
        store.shutdown();
        Thread.interrupted();
    }

    static void remove(String directory) throws IOException {
        Path root = Path.of(directory);
        if (!Files.exists(root)) {
            return;
        }
        try (Stream<Path> paths = Files.walk(root)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** Waits until this process' own background work (file warming, compilation) uses no processor time. */
    static void settle() throws InterruptedException {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int tries = 0; tries < 200; tries++) {
            long before = system.getProcessCpuTime();
            Thread.sleep(50);
            if (system.getProcessCpuTime() - before < 5_000_000) {
                return;
            }
        }
    }

    private StoreSetup() {
    }
}
