import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * What waits in a local store goes to a new tier.
 *
 * prepare store=DIR tier=DIR log_bytes=N queue_bytes=N slots=S capacity=N topics=T queues=Q messages=N bytes=N
 */
public final class TierUpload implements Rounds.Work {
    private Rounds.Parameters settings;
    private DefaultMessageStore local;
    private TierNode node;

    public static void main(String[] arguments) {
        TierNode.serve(new TierUpload());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        settings = parameters;
        local = TierNode.openLocal(parameters);
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        if (node != null) {
            node.end();
        }
        node = TierNode.begin(local, settings);
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) throws Exception {
        long messages = settings.number("messages");
        node.upload((int) settings.number("topics"), (int) settings.number("queues"), messages);
        return new Rounds.Done(messages, settings.number("bytes"), 0);
    }
}
