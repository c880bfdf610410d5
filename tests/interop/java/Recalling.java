import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer that sends messages for a time of their own, and takes some of them back.
 *
 * java Recalling '{"nameServer": …, "topic": …, "delaySeconds": …, "bodies": […], "recalled": […]}'
 * tells {"sent": {"body": …, "id": …, "handle": …}} and {"recalled": {"body": …, "id": …}} of each, then {"done": true}.
 */
public class Recalling {
    private static PrintStream events;

    public static void main(String[] arguments) {
        try {
            events = new PrintStream(System.out, true, "UTF-8");
            System.setOut(System.err); // The client's log goes there, too.
            work(JSON.parseObject(arguments[0]));
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive.
        }
    }

    private static void work(JSONObject job) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("RECALLING");
        producer.setNamesrvAddr(job.getString("nameServer"));
        producer.setSendMsgTimeout(Address.PATIENCE_MS);
        producer.setMqClientApiTimeout(Address.PATIENCE_MS);
        producer.start();
        String topic = job.getString("topic");
        for (Object body : job.getJSONArray("bodies")) {
            Message message = new Message(topic, ((String) body).getBytes(StandardCharsets.UTF_8));
            message.setDelayTimeSec(job.getLongValue("delaySeconds"));
            SendResult result = producer.send(message);
            tell("sent", body, result.getMsgId(), result.getRecallHandle());
            if (job.getJSONArray("recalled").contains(body)) {
                tell("recalled", body, producer.recallMessage(topic, result.getRecallHandle()), null);
            }
        }
        producer.shutdown();
        events.println("{\"done\":true}");
    }

    private static void tell(String event, Object body, String id, String handle) {
        JSONObject told = new JSONObject();
        told.put("body", body);
        told.put("id", id);
        told.put("handle", handle);
        events.println(new JSONObject().fluentPut(event, told).toJSONString());
    }
}
