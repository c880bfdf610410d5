import java.util.Random;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.index.IndexService;

/**
 * The real `IndexService`: `buildIndex` of ready dispatch requests with one key each into a new index, or `queryOffset`.
 *
 * prepare dir= log_size= keys= query=0|1; run count= seed= (of queries)
 */
public final class StoreIndex implements Rounds.Work {
    private static final int RECORD_BYTES = 373;
    private static final int MOST = 32;
    private static final int KEYS_PER_TOPIC = 1000;

    private IndexService index;
    private DispatchRequest[] requests;
    private String[] topics;
    private String[] keys;
    private boolean queries;

    public static void main(String[] arguments) {
        StoreSetup.serve(new StoreIndex(), () -> {
        });
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        DefaultMessageStore store = StoreSetup.load(StoreSetup.settings(parameters));
        index = new IndexService(store);
        queries = parameters.number("query") == 1;
        requests = new DispatchRequest[(int) parameters.number("keys")];
        Random random = new Random(7);
        long now = System.currentTimeMillis();
        for (int i = 0; i < requests.length; i++) {
            String topic = StoreSamples.topic(i / KEYS_PER_TOPIC);
            requests[i] = new DispatchRequest(topic, 0, (long) i * RECORD_BYTES, RECORD_BYTES, 0, now, i,
                StoreSamples.key(random), null, 0, 0, null);
        }
        if (queries) {
            put();
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        if (queries) {
            Random random = new Random(parameters.number("seed"));
            topics = new String[(int) parameters.number("count")];
            keys = new String[topics.length];
            for (int i = 0; i < keys.length; i++) {
                // Fresh, as a request brings them: how a million keys lie in memory is not the index's affair.
                DispatchRequest request = requests[random.nextInt(requests.length)];
                topics[i] = request.getTopic();
                keys[i] = new String(request.getKeys().toCharArray());
            }
        } else {
            index.destroy();
        }
        StoreSetup.settle();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        if (queries) {
            return query();
        }
        put();
        return new Rounds.Done(requests.length, 0, requests.length);
    }

    private void put() {
        for (DispatchRequest request : requests) {
            index.buildIndex(request);
        }
        if (index.queryOffset(requests[0].getTopic(), requests[0].getKeys(), MOST, 0, Long.MAX_VALUE)
            .getPhyOffsets().isEmpty()) {
            throw new IllegalStateException("the first key is not in the index");
        }
    }

    private Rounds.Done query() {
        long found = 0;
        for (int i = 0; i < keys.length; i++) {
            found += index.queryOffset(topics[i], keys[i], MOST, 0, Long.MAX_VALUE).getPhyOffsets().size();
        }
        if (found < keys.length) {
            throw new IllegalStateException("expected every key in the index, found " + found + " of " + keys.length);
        }
        return new Rounds.Done(keys.length, 0, found);
    }
}
