import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The pull consumer: every message of one queue, from an offset to the queue's end. */
@SuppressWarnings("deprecation")
final class Reading {
    private static final int MESSAGES_PER_PULL = 32;
    private final Address address;
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-reader");

    Reading(Address address) throws Exception {
        this.address = address;
        consumer.setNamesrvAddr(address.nameServer);
        consumer.setInstanceName("reading");
        consumer.setMqClientApiTimeout(Address.PATIENCE_MS);
        consumer.setConsumerPullTimeoutMillis(Address.PATIENCE_MS);
        consumer.start();
    }

    JSONArray all(JSONObject command) throws Exception {
        MessageQueue queue = address.queue(command.getString("topic"), command.getIntValue("queue"));
        String expression = command.getString("expression") == null ? "*" : command.getString("expression");
        JSONArray messages = new JSONArray();
        long offset = Math.max(command.getLongValue("from", 0), consumer.minOffset(queue));
        // A broker gives the end of what is on its own disk; of a queue that is in the tier alone the test knows the end.
        long end = command.getLong("to") == null ? consumer.maxOffset(queue) : command.getLongValue("to");
        while (offset < end) {
            PullResult page = consumer.pull(queue, expression, offset, MESSAGES_PER_PULL);
            if (page.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : page.getMsgFoundList()) {
                    messages.add(Described.message(message));
                }
            }
            if (page.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("pull of " + queue + " at " + offset + " of " + end
                    + " does not advance: " + page);
            }
            offset = page.getNextBeginOffset();
        }
        return messages;
    }

    long[] bounds(JSONObject command) throws Exception {
        MessageQueue queue = address.queue(command.getString("topic"), command.getIntValue("queue"));
        return new long[] {consumer.minOffset(queue), consumer.maxOffset(queue)};
    }

    /** What a consumer does with a message it could not handle: the broker stores it again for the group's retry. */
    boolean sendBack(JSONObject command) throws Exception {
        MessageQueue queue = address.queue(command.getString("topic"), command.getIntValue("queue"));
        PullResult page = consumer.pull(queue, "*", command.getLongValue("offset"), 1);
        consumer.sendMessageBack(page.getMsgFoundList().get(0), command.getIntValue("delay_level"), address.brokerName,
            command.getString("group"));
        return true;
    }

    void close() {
        consumer.shutdown();
    }
}
