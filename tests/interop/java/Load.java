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
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load as RocketMQ's benchmark programs make it, with RocketMQ's own client and binary headers (JSON if its first job
 * pops).
 *
 * The programs themselves (see Official) are out of reach on some machines. This one has their shape and their settings:
 * threads that share one producer and wait for each answer, no compression; batches of 16; a push consumer of 20
 * threads that takes messages one by one.
 *
 * A job is one JSON object on one line of its input: kind (send, batch, consume, transaction, lag), nameServer, topic,
 * threads, bytes, messages, batch, group, timeoutMs (of a send; RocketMQ's own 3 s unless given). It tells
 * {"messages", "failed", "seconds", "averageMs", "maxMs"} when all messages were sent or received, and
 * takes the next job, so that its compiled code stays warm.
 *
 * A consumer with pop true pops, if its group's mode is POP for the topic. Sends may have delayLevel or delaySeconds, and a rate (a second, all threads together; as fast as it goes unless
 * given). A transaction is a half message and its commit. A lag sends delayed messages of level 1 at a rate, consumes
 * them all, and tells as its seconds how long after their time 99 of 100 of them were delivered at most, by the
 * broker's store time.
 */
public final class Load {
    private static final long LEVEL_ONE_MS = 1_000;
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
        PrintStream events = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            FAILED.reset();
            TAKEN_NS.reset();
            LONGEST_NS.set(0);
            JSONObject job = JSON.parseObject(line);
            // Read when the first request is made. A binary header has no room for the codes of POP.
            System.setProperty("rocketmq.serialize.type", job.getBooleanValue("pop") ? "JSON" : "ROCKETMQ");
            double seconds = run(job.getString("kind"), job);
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

    private static double run(String kind, JSONObject job) throws Exception {
        if ("consume".equals(kind)) {
            return consume(job);
        }
        return "lag".equals(kind) ? lag(job) : produce(job);
    }

    private static DefaultMQProducer producerOf(JSONObject job) {
        if (!"transaction".equals(job.getString("kind"))) {
            return new DefaultMQProducer("benchmark_producer");
        }
        TransactionMQProducer producer = new TransactionMQProducer("benchmark_transaction_producer");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    private static double produce(JSONObject job) throws Exception {
        DefaultMQProducer producer = producerOf(job);
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
                for (long rest = left.getAndDecrement(); rest > 0; rest = left.getAndDecrement()) {
                    pace(began, job, rest);
                    send(producer, job, body, batch);
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

    /** Until the time of the message after which `rest` are left. */
    private static void pace(long began, JSONObject job, long rest) {
        long rate = job.getLongValue("rate");
        long number = job.getLongValue("messages") - rest;
        long wait = rate == 0 ? 0 : began + number * 1_000_000_000L / rate - System.nanoTime();
        if (wait > 0) {
            LockSupport.parkNanos(wait);
        }
    }

    private static Message messageOf(JSONObject job, byte[] body) {
        Message message = new Message(job.getString("topic"), body);
        if (job.containsKey("delayLevel")) {
            message.setDelayTimeLevel(job.getIntValue("delayLevel"));
        }
        if (job.containsKey("delaySeconds")) {
            message.setDelayTimeSec(job.getLongValue("delaySeconds"));
        }
        return message;
    }

    private static void send(DefaultMQProducer producer, JSONObject job, byte[] body, int batch) {
        String topic = job.getString("topic");
        long before = System.nanoTime();
        try {
            SendStatus status;
            if (producer instanceof TransactionMQProducer) {
                status = ((TransactionMQProducer) producer).sendMessageInTransaction(messageOf(job, body), null)
                    .getSendStatus();
            } else if (batch == 1) {
                status = producer.send(messageOf(job, body)).getSendStatus();
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

    private static double lag(JSONObject job) throws Exception {
        job.put("delayLevel", 1);
        int wanted = job.getIntValue("messages");
        long[] late = new long[wanted];
        AtomicLong received = new AtomicLong();
        CountDownLatch ended = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"));
        consumer.setNamesrvAddr(job.getString("nameServer"));
        consumer.setInstanceName(Long.toString(System.currentTimeMillis()));
        consumer.setMqClientApiTimeout(Address.PATIENCE_MS);
        consumer.subscribe(job.getString("topic"), "*");
        long begins = System.currentTimeMillis();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                long number = each.getBornTimestamp() < begins ? wanted : received.getAndIncrement();
                if (number < wanted) {
                    late[(int) number] = each.getStoreTimestamp() - each.getBornTimestamp() - LEVEL_ONE_MS;
                }
                if (number == wanted - 1) {
                    ended.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        produce(job);
        ended.await();
        consumer.shutdown();
        Arrays.sort(late);
        return late[(int) (0.99 * (wanted - 1))] / 1e3;
    }

    private static double consume(JSONObject job) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"));
        consumer.setNamesrvAddr(job.getString("nameServer"));
        consumer.setInstanceName(Long.toString(System.currentTimeMillis()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMqClientApiTimeout(Address.PATIENCE_MS);
        consumer.setConsumeThreadMin(job.getIntValue("threads"));
        consumer.setConsumeThreadMax(job.getIntValue("threads"));
        consumer.setClientRebalance(!job.getBooleanValue("pop"));
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
