import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;
import org.apache.rocketmq.shaded.com.google.gson.JsonParser;

/** Drives RocketMQ's `rocketmq-client-java` 5, which speaks gRPC. The job is that of grpc_rocketmq.py. */
public class GrpcRocketmq {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Duration INVISIBLE = Duration.ofSeconds(60);
    static final Duration AGAIN = Duration.ofSeconds(10);
    static JsonObject job;

    static synchronized void tell(String name, JsonElement value) {
        JsonObject event = new JsonObject();
        event.add(name, value);
        System.out.println(event);
    }

    static String text(ByteBuffer body) {
        return StandardCharsets.UTF_8.decode(body.duplicate()).toString();
    }

    static JsonElement json(String text) {
        JsonObject made = new JsonObject();
        made.addProperty("it", text);
        return made.get("it");
    }

    static String word(String name, String otherwise) {
        return job.has(name) ? job.get(name).getAsString() : otherwise;
    }

    static ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(word("endpoints", ""))
            .setRequestTimeout(Duration.ofSeconds(30))
            .enableSsl(job.has("tls") && job.get("tls").getAsBoolean());
        if (job.has("accessKey")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(word("accessKey", ""), word("secretKey", "")));
        }
        return builder.build();
    }

    static FilterExpression filter() {
        return job.has("sql") ? new FilterExpression(word("sql", ""), FilterExpressionType.SQL92)
            : new FilterExpression(word("only", "*"), FilterExpressionType.TAG);
    }

    static Set<String> all(String name) {
        Set<String> found = new HashSet<>();
        if (job.has(name)) {
            job.getAsJsonArray(name).forEach(each -> found.add(each.getAsString()));
        }
        return found;
    }

    static String told(MessageView view) {
        JsonObject message = new JsonObject();
        message.addProperty("body", text(view.getBody()));
        message.addProperty("attempt", view.getDeliveryAttempt());
        message.addProperty("tag", view.getTag().orElse(""));
        message.addProperty("id", view.getMessageId().toString());
        tell("received", message);
        return text(view.getBody());
    }

    static void send() throws Exception {
        BlockingQueue<String> asked = new LinkedBlockingQueue<>();
        String topic = word("topic", "");
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic);
        if (job.has("transaction")) {
            builder.setTransactionChecker(view -> {
                asked.add(text(view.getBody()));
                return TransactionResolution.COMMIT;
            });
        }
        try (Producer producer = builder.build()) {
            for (JsonElement each : job.getAsJsonArray("bodies")) {
                String body = each.getAsString();
                MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(topic).setTag(word("tag", "paid"))
                    .setKeys("key-" + Integer.toHexString(body.hashCode())).setBody(body.getBytes(StandardCharsets.UTF_8));
                if (job.has("messageGroup")) message.setMessageGroup(word("messageGroup", ""));
                if (job.has("delayS")) {
                    message.setDeliveryTimestamp(System.currentTimeMillis() + 1000L * job.get("delayS").getAsLong());
                }
                if (job.has("properties")) {
                    for (Map.Entry<String, JsonElement> entry : job.getAsJsonObject("properties").entrySet()) {
                        message.addProperty(entry.getKey(), entry.getValue().getAsString());
                    }
                }
                Transaction transaction = job.has("transaction") ? producer.beginTransaction() : null;
                SendReceipt receipt = transaction == null ? producer.send(message.build())
                    : producer.send(message.build(), transaction);
                JsonObject sent = new JsonObject();
                sent.addProperty("id", receipt.getMessageId().toString());
                tell("sent", sent);
                if (job.has("recall")) {
                    tell("recalled", json(producer.recallMessage(topic, receipt.getRecallHandle()).getMessageId().toString()));
                }
                String end = word("transaction", "");
                if (end.equals("lost")) {
                    tell("checked", json(asked.take()));
                    Thread.sleep(1000); // Its answer leaves behind the check.
                } else if (end.equals("commit")) {
                    transaction.commit();
                } else if (end.equals("rollback")) {
                    transaction.rollback();
                }
            }
        }
    }

    static void receive() throws Exception {
        Set<String> again = all("again");
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(word("group", "")).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(word("topic", ""), filter())).build()) {
            for (int left = job.get("receive").getAsInt(); left > 0;) {
                for (MessageView view : consumer.receive(32, INVISIBLE)) {
                    if (again.remove(told(view))) {
                        consumer.changeInvisibleDuration(view, AGAIN);
                    } else {
                        consumer.ack(view);
                        left--;
                    }
                }
            }
        }
    }

    static void push() throws Exception {
        Set<String> again = Collections.synchronizedSet(all("again"));
        AtomicInteger left = new AtomicInteger(job.get("receive").getAsInt());
        CountDownLatch over = new CountDownLatch(1);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(word("group", "")).setConsumptionThreadCount(1)
            .setSubscriptionExpressions(Collections.singletonMap(word("topic", ""), filter()))
            .setMessageListener(view -> {
                String body = told(view);
                while (all("hold").contains(body)) LockSupport.park();
                if (again.remove(body) || all("fail").contains(body)) return ConsumeResult.FAILURE;
                if (left.decrementAndGet() == 0) over.countDown();
                return ConsumeResult.SUCCESS;
            }).build()) {
            over.await();
            Thread.sleep(1000); // The last acknowledgement leaves behind the listener.
        }
    }

    public static void main(String[] words) throws Exception {
        job = JsonParser.parseString(words[0]).getAsJsonObject();
        try {
            if (job.has("bodies")) send();
            else if (job.has("push")) push();
            else receive();
        } catch (Exception error) {
            tell("failed", json(error.toString()));
            error.printStackTrace();
            System.exit(1);
        }
        tell("done", json("true"));
        System.exit(0);
    }
}
