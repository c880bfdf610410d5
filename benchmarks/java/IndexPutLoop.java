import java.io.File;
import java.util.Random;

/**
 * Put of random 16-character keys into one index file, in RocketMQ's shape: the key string "topic#key" is built for
 * every put and its hash taken anew. With hashed=1 the hashes are ready, as a comparison with batches of hashes needs.
 *
 * prepare dir=DIRECTORY keys=COUNT; run hashed=0|1 fresh=0|1 (puts all keys into the emptied file, warm or fresh).
 */
public final class IndexPutLoop implements Rounds.Work {
    private IndexFile index;
    private String[] keys;
    private int[] hashes;
    private String[] topics;

    public static void main(String[] arguments) throws Exception {
        Rounds.serve(new IndexPutLoop());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        int count = (int) parameters.number("keys");
        index = IndexFile.createWarm(parameters.text("dir") + File.separator + "index", count);
        topics = new String[Samples.TOPICS];
        for (int topic = 0; topic < topics.length; topic++) {
            topics[topic] = Samples.topic(topic);
        }
        Random random = new Random(7);
        keys = new String[count];
        hashes = new int[count];
        for (int i = 0; i < count; i++) {
            String hex = Long.toHexString(random.nextLong());
            keys[i] = "0".repeat(16 - hex.length()) + hex;
            hashes[i] = random.nextInt(Integer.MAX_VALUE);
        }
    }

    @Override
    public void reset(Rounds.Parameters parameters) throws Exception {
        index.clear(parameters.number("fresh") == 1);
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        long now = System.currentTimeMillis();
        boolean done = parameters.number("hashed") == 1 ? putHashes(now) : putKeys(now);
        if (!done) {
            throw new IllegalStateException("the index file is full after " + index.count() + " keys");
        }
        return new Rounds.Done(keys.length, 0, index.count());
    }

    private boolean putKeys(long now) {
        boolean done = true;
        for (int i = 0; i < keys.length; i++) {
            String key = topics[i % Samples.TOPICS] + "#" + keys[i];
            done &= index.putKey(key, (long) i * Samples.RECORD_BYTES, now);
        }
        return done;
    }

    private boolean putHashes(long now) {
        boolean done = true;
        for (int i = 0; i < hashes.length; i++) {
            done &= index.putHash(hashes[i], (long) i * Samples.RECORD_BYTES, now);
        }
        return done;
    }
}
