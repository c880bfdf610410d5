import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load as RocketMQ's benchmark programs make it, with RocketMQ's own client and binary headers.
 *
 * The programs themselves (see Official) are out of reach on some machines. This one has their shape and their settings:
 * threads that share one producer and wait for each answer, no compression; batches of 16; a push consumer of 20
 * threads that takes messages one by one.
 *
 * A job is one JSON object on one line of its input: kind (send, batch, consume), nameServer, topic, threads, bytes,
 * messages, batch, group, timeoutMs (of a send; RocketMQ's own 3 s unless given). It tells
 * {"messages", "failed", "seconds", "averageMs", "maxMs"} when all messages were sent or received, and
 * takes the next job, so that its compiled code stays warm.
 */
public final class Load {
    private static final LongAdder FAILED = new LongAdder();
    private static final LongAdder TAKEN_NS = new LongAdder();
    private static final AtomicLong LONGEST_NS = new AtomicLong();

    public static void main(String[] arguments) {
        try {
            work();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive.
        }
    }

    private static void work() throws Exception {
        System.setProperty("rocketmq.serialize.type", "ROCKETMQ");
        PrintStream events = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            FAILED.reset();
            TAKEN_NS.reset();
            LONGEST_NS.set(0);
            JSONObject job = JSON.parseObject(line);
            double seconds = "consume".equals(job.getString("kind")) ? consume(job) : produce(job);
            long messages = job.getLongValue("messages");
            JSONObject told = new JSONObject();
            told.put("messages", messages);
            told.put("failed", FAILED.sum());
            told.put("seconds", seconds);
            told.put("averageMs", TAKEN_NS.sum() / 1e6 / messages);
            told.put("maxMs", LONGEST_NS.get() / 1e6);
            events.println(told.toJSONString());
        }
    }

    private static double produce(JSONObject job) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("benchmark_producer");
        producer.setNamesrvAddr(job.getString("nameServer"));
        producer.setInstanceName(Long.toString(System.currentTimeMillis()));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setMqClientApiTimeout(Address.PATIENCE_MS);
        producer.setSendMsgTimeout(job.getIntValue("timeoutMs", producer.getSendMsgTimeout()));
        producer.start();
        byte[] body = new byte[job.getIntValue("bytes")];
        Arrays.fill(body, (byte) 'h');
        int threads = job.getIntValue("threads");
        int batch = "batch".equals(job.getString("kind")) ? job.getIntValue("batch") : 1;
        AtomicLong left = new AtomicLong(job.getLongValue("messages") / batch);
        CountDownLatch ended = new CountDownLatch(threads);
        awaitRoute(producer, job.getString("topic"));
        long began = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    send(producer, job.getString("topic"), body, batch);
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        double seconds = (System.nanoTime() - began) / 1e9;
        producer.shutdown();
        return seconds;
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

    private static void send(DefaultMQProducer producer, String topic, byte[] body, int batch) {
        long before = System.nanoTime();
        try {
            SendStatus status;
            if (batch == 1) {
                status = producer.send(new Message(topic, body)).getSendStatus();
            } else {
                List<Message> messages = new ArrayList<>(batch);
                for (int i = 0; i < batch; i++) {
                    messages.add(new Message(topic, body));
                }
                status = producer.send(messages).getSendStatus();
            }
            if (status != SendStatus.SEND_OK) {
                FAILED.add(batch);
            }
        } catch (Exception error) {
            FAILED.add(batch);
            error.printStackTrace();
        }
        long taken = System.nanoTime() - before;
        TAKEN_NS.add(taken * batch);
        LONGEST_NS.accumulateAndGet(taken, Math::max);
    }

    private static double consume(JSONObject job) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"));
        consumer.setNamesrvAddr(job.getString("nameServer"));
        consumer.setInstanceName(Long.toString(System.currentTimeMillis()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(Address.PATIENCE_MS);
        consumer.setConsumeThreadMin(job.getIntValue("threads"));
        consumer.setConsumeThreadMax(job.getIntValue("threads"));
        consumer.subscribe(job.getString("topic"), "*");
        long wanted = job.getLongValue("messages");
        AtomicLong received = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch ended = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (received.addAndGet(messages.size()) == wanted) {
                ended.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        ended.await();
        double seconds = (System.nanoTime() - first.get()) / 1e9;
        consumer.shutdown();
        return seconds;
    }
}
