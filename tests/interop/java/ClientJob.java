import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * RocketMQ's own client does one job, told by one JSON object, and tells what happened as JSON lines.
 *
 * nameServer, topic, group, optional accessKey and secretKey, and either
 *   bodies; optional tag, key, properties, delay, batch, orderly, async, oneway, vip, awaitRoute →  {"sent": {…}} for each
 *   receive: how many; optional tag, sql, orderly, broadcast, lite, failures, tries →  {"received": {…}} for each
 * and {"done": true} at the end. With "standing" a consumer goes on after that, until its input ends.
 */
@SuppressWarnings("deprecation")
public final class ClientJob {
    /** A machine that is busy with other things must not look like a broker that does not answer. */
    private static final int PATIENCE_MS = 60_000;
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
        JSONObject job = JSON.parseObject(arguments[0]);
        if (job.containsKey("bodies")) {
            send(job);
        } else if (job.getBooleanValue("lite")) {
            poll(job);
        } else {
            consume(job);
        }
        tell("done", true);
    }

    /** What signs every request of an account; null without one. */
    private static RPCHook signer(JSONObject job) {
        String key = job.getString("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, job.getString("secretKey")));
    }

    private static void send(JSONObject job) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(job.getString("group"), signer(job));
        producer.setNamesrvAddr(job.getString("nameServer"));
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setVipChannelEnabled(job.getBooleanValue("vip"));
        producer.start();
        if (job.getBooleanValue("awaitRoute")) {
            awaitRoute(producer, job.getString("topic"));
        }
        List<Message> messages = new ArrayList<>();
        for (Object body : job.getJSONArray("bodies")) {
            messages.add(message(job, (String) body));
        }
        if (job.getBooleanValue("batch")) {
            tell("sent", described(producer.send(messages)));
        } else if (job.getBooleanValue("async")) {
            BlockingQueue<Object> results = new LinkedBlockingQueue<>();
            for (Message message : messages) {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        results.add(result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        results.add(error);
                    }
                });
            }
            for (int i = 0; i < messages.size(); i++) {
                Object result = results.take();
                if (result instanceof Throwable) {
                    throw new IllegalStateException((Throwable) result);
                }
                tell("sent", described((SendResult) result));
            }
        } else {
            for (Message message : messages) {
                one(job, producer, message);
            }
        }
        producer.shutdown();
    }

    /** A broker that has just started may not have told its name server of its topics yet. */
    private static void awaitRoute(DefaultMQProducer producer, String topic) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException error) {
                if (tries == 100) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    private static void one(JSONObject job, DefaultMQProducer producer, Message message) throws Exception {
        if (job.getBooleanValue("oneway")) {
            producer.sendOneway(message);
        } else if (job.getBooleanValue("orderly")) {
            tell("sent", described(producer.send(message, (queues, asked, key) -> queues.get(1), "one key")));
        } else {
            tell("sent", described(producer.send(message)));
        }
    }

    private static Message message(JSONObject job, String body) {
        Message message = new Message(job.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
        if (job.getString("tag") != null) {
            message.setTags(job.getString("tag"));
        }
        if (job.getString("key") != null) {
            message.setKeys(job.getString("key"));
        }
        if (job.containsKey("delay")) {
            message.setDelayTimeLevel(job.getIntValue("delay"));
        }
        JSONObject properties = job.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }

    private static void consume(JSONObject job) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"), signer(job));
        consumer.setNamesrvAddr(job.getString("nameServer"));
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setInstanceName(job.getString("group") + ProcessHandle.current().pid());
        if (job.getBooleanValue("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (job.getString("sql") != null) {
            consumer.subscribe(job.getString("topic"), MessageSelector.bySql(job.getString("sql")));
        } else {
            consumer.subscribe(job.getString("topic"), job.getString("tag") == null ? "*" : job.getString("tag"));
        }
        if (job.containsKey("tries")) {
            consumer.setMaxReconsumeTimes(job.getIntValue("tries"));
        }
        BlockingQueue<MessageExt> arrived = new LinkedBlockingQueue<>();
        AtomicInteger failures = new AtomicInteger(job.getIntValue("failures"));
        if (job.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                arrived.addAll(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                arrived.addAll(messages);
                return failures.getAndDecrement() > 0
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        tell("started", true);
        for (int left = job.getIntValue("receive"); left > 0; left--) {
            tell("received", described(arrived.take()));
        }
        if (job.getBooleanValue("standing")) {
            tell("done", true);
            while (System.in.read() >= 0) {
                continue;
            }
        }
        consumer.shutdown();
    }

    private static void poll(JSONObject job) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(job.getString("group"), signer(job));
        consumer.setNamesrvAddr(job.getString("nameServer"));
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(job.getString("topic"), job.getString("tag") == null ? "*" : job.getString("tag"));
        consumer.start();
        int left = job.getIntValue("receive");
        while (left > 0) {
            for (MessageExt message : consumer.poll()) {
                tell("received", described(message));
                left--;
            }
        }
        consumer.commitSync();
        consumer.shutdown();
    }

    private static JSONObject described(SendResult result) {
        JSONObject told = new JSONObject();
        told.put("status", result.getSendStatus().name());
        told.put("id", result.getMsgId());
        told.put("offset_id", result.getOffsetMsgId());
        told.put("queue", result.getMessageQueue().getQueueId());
        told.put("offset", result.getQueueOffset());
        return told;
    }

    private static JSONObject described(MessageExt message) {
        JSONObject told = new JSONObject();
        told.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        told.put("tag", message.getTags());
        told.put("key", message.getKeys());
        told.put("topic", message.getTopic());
        told.put("queue", message.getQueueId());
        told.put("offset", message.getQueueOffset());
        told.put("times", message.getReconsumeTimes());
        return told;
    }

    private static synchronized void tell(String kind, Object value) {
        JSONObject event = new JSONObject();
        event.put(kind, value);
        events.println(event.toJSONString());
    }
}
