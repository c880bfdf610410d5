import org.apache.rocketmq.common.message.MessageQueue;

/** Where the one broker of a test is found. */
final class Address {
    /** How long the clients wait for an answer: a machine that has other things to do as well is no failure. */
    static final int PATIENCE_MS = 60_000;

    final String nameServer;
    final String cluster;
    final String brokerName;
    final String broker;

    Address(String nameServer, String cluster, String brokerName, String broker) {
        this.nameServer = nameServer;
        this.cluster = cluster;
        this.brokerName = brokerName;
        this.broker = broker;
    }

    MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, brokerName, queueId);
    }
}
