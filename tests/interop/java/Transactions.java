import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own producer of transactions, steered by a test.
 *
 * Usage: java Transactions NAME_SERVER GROUP. One JSON object per line on its input: topic, body, now and later, which
 * are commit, rollback or unknown (later: what it says when the broker asks); optional properties. It tells
 * {"sent": {…}} for each, and {"asked": {…}} whenever the broker asks. It ends when its input ends.
 */
public final class Transactions {
    private static final int PATIENCE_MS = 60_000;
    private static final Map<String, String> LATER = new ConcurrentHashMap<>();
    private static PrintStream events;

    public static void main(String[] arguments) {
        try {
            work(arguments);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive.
        }
    }

    private static void work(String[] arguments) throws Exception {
        events = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        TransactionMQProducer producer = new TransactionMQProducer(arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setTransactionListener(new AsTold());
        producer.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject job = JSON.parseObject(line);
            LATER.put(job.getString("body"), job.getString("later"));
            Message message = new Message(
                job.getString("topic"), job.getString("body").getBytes(StandardCharsets.UTF_8));
            JSONObject properties = job.getJSONObject("properties");
            if (properties != null) {
                properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
            }
            TransactionSendResult result = producer.sendMessageInTransaction(message, job.getString("now"));
            JSONObject told = new JSONObject();
            told.put("status", result.getSendStatus().name());
            told.put("state", result.getLocalTransactionState().name());
            told.put("id", result.getTransactionId());
            told.put("queue", result.getMessageQueue().getQueueId());
            told.put("offset", result.getQueueOffset());
            tell("sent", told);
        }
        producer.shutdown();
    }

    private static LocalTransactionState state(String decision) {
        switch (decision) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private static synchronized void tell(String kind, Object value) {
        JSONObject event = new JSONObject();
        event.put(kind, value);
        events.println(event.toJSONString());
    }

    private static final class AsTold implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return state((String) decision);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            JSONObject told = new JSONObject();
            told.put("body", body);
            told.put("topic", message.getTopic());
            told.put("id", message.getTransactionId());
            told.put("times", message.getProperty("TRANSACTION_CHECK_TIMES"));
            tell("asked", told);
            return state(LATER.get(body));
        }
    }
}
