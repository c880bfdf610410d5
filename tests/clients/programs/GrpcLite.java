import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;
import org.apache.rocketmq.shaded.com.google.gson.JsonParser;

/** Lite topics by `rocketmq-client-java` from 5.1 on: GrpcRocketmq.java also runs with releases that have none. The job is
 *  that of grpc_rocketmq.py. */
public class GrpcLite {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static JsonObject job;

    static String word(String name) {
        return job.get(name).getAsString();
    }

    static synchronized void tell(String name, JsonObject value) {
        JsonObject event = new JsonObject();
        event.add(name, value);
        System.out.println(event);
    }

    static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(word("endpoints")).setRequestTimeout(Duration.ofSeconds(30))
            .enableSsl(false).build();
    }

    static void send() throws Exception {
        String topic = word("topic");
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic).build()) {
            for (JsonElement each : job.getAsJsonArray("bodies")) {
                byte[] body = each.getAsString().getBytes(StandardCharsets.UTF_8);
                JsonObject sent = new JsonObject();
                sent.addProperty("id", producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body)
                    .setLiteTopic(job.getAsJsonArray("lite").get(0).getAsString()).build()).getMessageId().toString());
                tell("sent", sent);
            }
        }
    }

    static String told(MessageView view) {
        ByteBuffer bytes = view.getBody();
        String body = StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
        JsonObject message = new JsonObject();
        message.addProperty("body", body);
        message.addProperty("attempt", view.getDeliveryAttempt());
        tell("received", message);
        return body;
    }

    static void push() throws Exception {
        Set<String> again = Collections.synchronizedSet(new HashSet<>());
        if (job.has("again")) job.getAsJsonArray("again").forEach(each -> again.add(each.getAsString()));
        AtomicInteger left = new AtomicInteger(job.get("receive").getAsInt());
        CountDownLatch over = new CountDownLatch(1);
        try (LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().bindTopic(word("topic"))
            .setClientConfiguration(configuration()).setConsumerGroup(word("group")).setConsumptionThreadCount(1)
            .setMessageListener(view -> {
                if (again.remove(told(view))) return ConsumeResult.FAILURE;
                if (left.decrementAndGet() == 0) over.countDown();
                return ConsumeResult.SUCCESS;
            }).build()) {
            for (JsonElement name : job.getAsJsonArray("lite")) consumer.subscribeLite(name.getAsString());
            over.await();
            Thread.sleep(1000); // The last acknowledgement leaves behind the listener.
        }
    }

    public static void main(String[] words) throws Exception {
        job = JsonParser.parseString(words[0]).getAsJsonObject();
        try {
            if (job.has("bodies")) send();
            else push();
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
        tell("done", new JsonObject());
        System.exit(0);
    }
}
