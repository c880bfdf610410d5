import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Load as RocketMQ's benchmark programs make it, with RocketMQ's own client and binary headers (JSON if its first job
 * pops).
 *
 * The programs themselves (see Official) are out of reach on some machines. This one has their shape and their settings:
 * threads that share one producer and wait for each answer, no compression; batches of 16; a push consumer of 20
 * threads that takes messages one by one.
 *
 * A job is one JSON object on one line of its input: kind (send, batch, consume, transaction, lag, open), nameServer, topic,
 * threads, bytes, messages, batch, group, timeoutMs (of a send; RocketMQ's own 3 s unless given). It tells
 * {"messages", "failed", "seconds", "cpuSeconds", "averageMs", "maxMs"} when all messages were sent or received, and
 * takes the next job, so that its compiled code stays warm.
 *
 * A consumer with pop true pops, if its group's mode is POP for the topic. Sends may have delayLevel or delaySeconds, and a rate (a second, all threads together; as fast as it goes unless
 * given); with topics they go to so many in turn, as those of an open loop. A transaction is a half message and its commit. A lag sends delayed messages of level 1 at a rate, consumes
 * them all, and tells as its seconds how long after their time 99 of 100 of them came to the listener
 * at most. An open loop sends each message at its intended time, answered or not, to a consumer beside; it
 * adds {"send", "endToEnd", "late"}: milliseconds from the intended time to the answer, to the listener, and to the call
 * of the client, each as {"p50", "p99", "p999", "max"}. With topics, so many, named TOPIC-0 and so on, get the messages in
 * turn, and one in each queue before the first loop; then there is no consumer and no "endToEnd".
 */
public final class Load {
    private static final long LEVEL_ONE_MS = 1_000;
    private static final LongAdder FAILED = new LongAdder();
    private static final LongAdder TAKEN_NS = new LongAdder();
    private static final AtomicLong LONGEST_NS = new AtomicLong();
    /** Topics of open loops whose queues have a message each. */
    private static final Set<String> BEGUN = new HashSet<>();
    private static final Map<String, DefaultMQProducer> KEPT = new HashMap<>();

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
            JSONObject told = new JSONObject();
            long cpuBefore = cpuNs();
            double seconds = run(job.getString("kind"), job, told);
            told.put("cpuSeconds", (cpuNs() - cpuBefore) / 1e9);
            long messages = job.getLongValue("messages");
            told.put("messages", messages);
            told.put("failed", FAILED.sum());
            told.put("seconds", seconds);
            told.put("averageMs", TAKEN_NS.sum() / 1e6 / messages);
            told.put("maxMs", LONGEST_NS.get() / 1e6);
            events.println(told.toJSONString());
        }
    }

    /** Of this process, the start and end of a job's client too. */
    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    private static double run(String kind, JSONObject job, JSONObject told) throws Exception {
        if ("consume".equals(kind)) {
            return consume(job);
        }
        if ("open".equals(kind)) {
            return new OpenLoop(job).run(told);
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

    /** A producer to many topics is kept for the next job, since it asks for the route of each once. */
    private static DefaultMQProducer startedProducer(JSONObject job) throws Exception {
        DefaultMQProducer kept = KEPT.get(job.getString("nameServer"));
        if (kept != null && job.containsKey("topics")) {
            return kept;
        }
        DefaultMQProducer producer = producerOf(job);
        producer.setNamesrvAddr(job.getString("nameServer"));
        producer.setInstanceName(Long.toString(System.nanoTime()));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setMqClientApiTimeout(Address.PATIENCE_MS);
        producer.setSendMsgTimeout(job.getIntValue("timeoutMs", producer.getSendMsgTimeout()));
        producer.start();
        if (job.containsKey("topics")) {
            KEPT.put(job.getString("nameServer"), producer);
        }
        return producer;
    }

    private static double produce(JSONObject job) throws Exception {
        DefaultMQProducer producer = startedProducer(job);
        byte[] body = new byte[job.getIntValue("bytes")];
        Arrays.fill(body, (byte) 'h');
        int threads = job.getIntValue("threads");
        int batch = "batch".equals(job.getString("kind")) ? job.getIntValue("batch") : 1;
        AtomicLong left = new AtomicLong(job.getLongValue("messages") / batch);
        CountDownLatch ended = new CountDownLatch(threads);
        awaitRoute(producer, topicOf(job, 0));
        long began = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                for (long rest = left.getAndDecrement(); rest > 0; rest = left.getAndDecrement()) {
                    pace(began, job, rest);
                    send(producer, job, body, batch, rest);
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        double seconds = (System.nanoTime() - began) / 1e9;
        if (!job.containsKey("topics")) {
            producer.shutdown();
        }
        return seconds;
    }

    /** The job's topic; with topics, one of TOPIC-0, TOPIC-1 and so on, in turn. */
    private static String topicOf(JSONObject job, long number) {
        int topics = job.getIntValue("topics");
        return topics == 0 ? job.getString("topic") : job.getString("topic") + "-" + number % topics;
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

    private static Message messageOf(JSONObject job, byte[] body, long number) {
        Message message = new Message(topicOf(job, number), body);
        if (job.containsKey("delayLevel")) {
            message.setDelayTimeLevel(job.getIntValue("delayLevel"));
        }
        if (job.containsKey("delaySeconds")) {
            message.setDelayTimeSec(job.getLongValue("delaySeconds"));
        }
        return message;
    }

    private static void send(DefaultMQProducer producer, JSONObject job, byte[] body, int batch, long number) {
        String topic = job.getString("topic");
        long before = System.nanoTime();
        try {
            SendStatus status;
            if (producer instanceof TransactionMQProducer) {
                status = ((TransactionMQProducer) producer).sendMessageInTransaction(messageOf(job, body, number), null)
                    .getSendStatus();
            } else if (batch == 1) {
                status = producer.send(messageOf(job, body, number)).getSendStatus();
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
                    late[(int) number] = System.currentTimeMillis() - each.getBornTimestamp() - LEVEL_ONE_MS;
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

    /** Times are System.nanoTime() of this process. A body begins with the loop's own number and the message's. */
    private static final class OpenLoop {
        private final JSONObject job;
        private final int wanted;
        private final long loop = System.nanoTime();
        private final AtomicLongArray answeredNs;
        private final AtomicLongArray receivedNs;
        private final AtomicLongArray calledNs;
        private final CountDownLatch answers;
        private final CountDownLatch receipts;
        private CountDownLatch probes;

        OpenLoop(JSONObject job) {
            this.job = job;
            wanted = job.getIntValue("messages");
            answeredNs = new AtomicLongArray(wanted);
            receivedNs = new AtomicLongArray(wanted);
            calledNs = new AtomicLongArray(wanted);
            answers = new CountDownLatch(wanted);
            receipts = new CountDownLatch(wanted);
        }

        double run(JSONObject told) throws Exception {
            DefaultMQProducer producer = producerOf(job);
            producer.setNamesrvAddr(job.getString("nameServer"));
            producer.setInstanceName("producer-" + loop);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.setMqClientApiTimeout(Address.PATIENCE_MS);
            producer.setSendMsgTimeout(Address.PATIENCE_MS);
            producer.start();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(job.getString("group"));
            consumer.setNamesrvAddr(job.getString("nameServer"));
            consumer.setInstanceName("consumer-" + loop);
            consumer.setMqClientApiTimeout(Address.PATIENCE_MS);
            consumer.subscribe(job.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::receive);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            int topics = job.getIntValue("topics");
            if (topics == 0) {
                consumer.start();
                awaitRoute(producer, job.getString("topic"));
                probe(producer);
            }
            for (int topic = 0; topic < topics; topic++) {
                String name = Load.topicOf(job, topic);
                if (BEGUN.add(job.getString("nameServer") + " " + name)) {
                    awaitRoute(producer, name);
                    for (MessageQueue queue : producer.fetchPublishMessageQueues(name)) {
                        producer.send(new Message(name, bodyOf(-1)), queue);
                    }
                }
            }
            long began = System.nanoTime() + 10_000_000;
            for (int number = 0; number < wanted; number++) {
                long due = due(began, number);
                for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
                calledNs.set(number, System.nanoTime());
                send(producer, number);
            }
            answers.await();
            double seconds = (System.nanoTime() - began) / 1e9;
            if (topics == 0) {
                receipts.await();
                consumer.shutdown();
                told.put("endToEnd", quantiles(began, receivedNs));
            }
            producer.shutdown();
            told.put("send", quantiles(began, answeredNs));
            told.put("late", quantiles(began, calledNs));
            return seconds;
        }

        private long due(long began, int number) {
            return began + number * 1_000_000_000L / job.getLongValue("rate");
        }

        /** One message of each queue has come: the consumer has all of them. */
        private void probe(DefaultMQProducer producer) throws Exception {
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(job.getString("topic"));
            probes = new CountDownLatch(queues.size());
            for (MessageQueue queue : queues) {
                producer.send(new Message(job.getString("topic"), bodyOf(-1)), queue);
            }
            probes.await();
        }

        private byte[] bodyOf(int number) {
            byte[] body = new byte[job.getIntValue("bytes")];
            ByteBuffer.wrap(body).putLong(loop).putInt(number);
            return body;
        }

        private void send(DefaultMQProducer producer, int number) throws Exception {
            producer.send(new Message(Load.topicOf(job, number), bodyOf(number)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answeredNs.set(number, System.nanoTime());
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        FAILED.increment();
                    }
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                    FAILED.increment();
                    answers.countDown();
                    receipts.countDown(); // It may have been stored; the failure ends the benchmark anyway.
                }
            });
        }

        private void receive(MessageExt message) {
            ByteBuffer body = ByteBuffer.wrap(message.getBody());
            if (body.remaining() < Long.BYTES + Integer.BYTES || body.getLong() != loop) {
                return; // Of a loop before.
            }
            int number = body.getInt();
            if (number < 0) {
                probes.countDown();
            } else if (receivedNs.compareAndSet(number, 0, System.nanoTime())) {
                receipts.countDown();
            }
        }

        private JSONObject quantiles(long began, AtomicLongArray timesNs) {
            long[] taken = new long[wanted];
            for (int number = 0; number < wanted; number++) {
                taken[number] = timesNs.get(number) - due(began, number);
            }
            Arrays.sort(taken);
            JSONObject found = new JSONObject();
            found.put("p50", taken[(int) (0.5 * (wanted - 1))] / 1e6);
            found.put("p99", taken[(int) (0.99 * (wanted - 1))] / 1e6);
            found.put("p999", taken[(int) (0.999 * (wanted - 1))] / 1e6);
            found.put("max", taken[wanted - 1] / 1e6);
            return found;
        }
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
