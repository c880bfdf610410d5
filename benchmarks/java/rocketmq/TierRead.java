import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Reads what is in the tier: whole queues, pages anywhere, or messages by their key. What was read before is forgotten
 * before each round.
 *
 * prepare: as TierUpload's
 * run how=sequential page=32 | how=random page=32 count=N seed=S | how=keys count=N seed=S
 */
public final class TierRead implements Rounds.Work {
    private static final String GROUP = "bench-group";

    private TierNode node;
    private int topics;
    private int queues;
    private long messages;

    public static void main(String[] arguments) {
        TierNode.serve(new TierRead());
    }

    @Override
    public void prepare(Rounds.Parameters parameters) throws Exception {
        topics = (int) parameters.number("topics");
        queues = (int) parameters.number("queues");
        messages = parameters.number("messages");
        node = TierNode.begin(TierNode.openLocal(parameters), parameters);
        node.upload(topics, queues, messages);
        node.uploadIndex();
    }

    @Override
    public void reset(Rounds.Parameters parameters) {
        node.forget();
    }

    @Override
    public Rounds.Done run(Rounds.Parameters parameters) {
        return switch (parameters.text("how")) {
            case "sequential" -> sequential((int) parameters.number("page"));
            case "random" -> random((int) parameters.number("page"), parameters);
            case "keys" -> keys(parameters);
            default -> throw new IllegalArgumentException("expected sequential, random or keys");
        };
    }

    private long perQueue() {
        return messages / (topics * queues);
    }

    private Rounds.Done sequential(int page) {
        long count = 0;
        long size = 0;
        for (int topic = 0; topic < topics; topic++) {
            for (int queue = 0; queue < queues; queue++) {
                for (long offset = 0; offset < perQueue(); ) {
                    GetMessageResult found = get(TierData.topic(topic), queue, offset, page);
                    offset = found.getNextBeginOffset();
                    count += found.getMessageCount();
                    size += found.getBufferTotalSize();
                }
            }
        }
        if (count != messages) {
            throw new IllegalStateException("expected " + messages + " messages, found " + count);
        }
        return new Rounds.Done(count, size, count);
    }

    private Rounds.Done random(int page, Rounds.Parameters parameters) {
        TierData chance = new TierData(parameters.number("seed"));
        long wanted = parameters.number("count");
        long count = 0;
        long size = 0;
        for (long each = 0; each < wanted; each++) {
            int topic = (int) chance.below(topics);
            int queue = (int) chance.below(queues);
            long offset = chance.below(perQueue() - page);
            // A page ends where the cache has no more, and then the rest is asked for, as a consumer does.
            for (long end = offset + page; offset < end; ) {
                GetMessageResult found = get(TierData.topic(topic), queue, offset, (int) (end - offset));
                offset = found.getNextBeginOffset();
                count += found.getMessageCount();
                size += found.getBufferTotalSize();
            }
        }
        if (count != wanted * page) {
            throw new IllegalStateException("expected " + wanted * page + " messages, found " + count);
        }
        return new Rounds.Done(count, size, count);
    }

    private GetMessageResult get(String topic, int queue, long offset, int page) {
        CompletableFuture<GetMessageResult> asked = node.getMessageAsync(GROUP, topic, queue, offset, page, null);
        GetMessageResult found = asked.join();
        if (found.getStatus() != GetMessageStatus.FOUND) {
            throw new IllegalStateException("expected FOUND at " + offset + ", found " + found.getStatus());
        }
        return found;
    }

    private Rounds.Done keys(Rounds.Parameters parameters) {
        TierData chance = new TierData(parameters.number("seed"));
        long wanted = parameters.number("count");
        long size = 0;
        for (long each = 0; each < wanted; each++) {
            long number = chance.below(messages);
            String topic = TierData.topic((int) (number % topics));
            QueryMessageResult found =
                node.queryMessageAsync(topic, TierData.key(number), 32, 0, Long.MAX_VALUE).join();
            // RocketMQ leaves it to the client to drop messages of other keys with the same hash: two are no mistake.
            if (found.getMessageBufferList().isEmpty()) {
                throw new IllegalStateException("expected a message for a key, found none");
            }
            size += found.getBufferTotalSize();
        }
        return new Rounds.Done(wanted, size, size);
    }
}
