import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.hook.ConsumeMessageContext;
import org.apache.rocketmq.client.hook.ConsumeMessageHook;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.impl.producer.DefaultMQProducerImpl;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.MixAll;

/**
 * RocketMQ's own benchmark programs (rocketmq-example), unchanged, each for a number of messages.
 *
 * Most of them run until they are killed and print rates, not counts. This class calls their `main` and puts hooks into
 * the clients they make, as RocketMQ's client offers them to everybody. A hook counts what was acknowledged or
 * consumed, and lets no send begin beyond the wanted number; what failed may be tried again. After that the client is
 * shut down. The one setting that differs is the time after which the client gives a request up.
 *
 * A job is one JSON object on one line of the input: program, arguments, messages, batch (messages of one send),
 * reports (how many lines of its own the program shall print after the last message), threads (that send and never
 * end), endsByItself, record (a file for a line of each acknowledged message: its unique id, queue and offset) and
 * failures (how many end it). The answer is one line: {"messages", "failed", "seconds", "said"}; seconds are from the first
 * message to the last one, `said` is what the program printed. The next job runs in the same JVM, whose compiled code
 * stays warm.
 */
public final class Official {
    private static final String PROGRAMS = "org.apache.rocketmq.example.benchmark.";
    private static final long FAILURES_UNTIL_THE_END = 1000; // Unless the job says so.
    /** Three seconds, the client's own, are soon over for 64 threads on a machine that has other things to do. */
    private static final int TIMEOUT_MS = 60_000;
    private static final String REPORT = " TPS: ";

    /** The threads that a program makes inherit where its words go, so those of a former program do not mix in. */
    private static final InheritableThreadLocal<Job> SPEAKER = new InheritableThreadLocal<>();

    public static void main(String[] arguments) {
        try {
            work();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The programs' own threads would keep the process alive.
        }
    }

    private static void work() throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1); // A program that lost a thread would never reach its number.
        });
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(new PrintStream(new Words(), true, "UTF-8"));
        install(MQClientManager.getInstance(), "factoryTable", new Clients());
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            answers.println(new Job(JSON.parseObject(line)).run().toJSONString());
        }
    }

    /** Lines that the programs print, each given to the job of the thread that printed it. */
    private static final class Words extends OutputStream {
        private final ThreadLocal<ByteArrayOutputStream> started = ThreadLocal.withInitial(ByteArrayOutputStream::new);

        @Override
        public void write(int each) {
            ByteArrayOutputStream line = started.get();
            if (each != '\n') {
                line.write(each);
                return;
            }
            Job job = SPEAKER.get();
            if (job != null) {
                job.hear(new String(line.toByteArray(), StandardCharsets.UTF_8));
            }
            line.reset();
        }
    }

    /**
     * RocketMQ's table of clients, which hooks each that a program makes. Looking into the table from outside would be
     * too late for the first messages of a program that starts fast.
     */
    private static final class Clients extends ConcurrentHashMap<String, MQClientInstance> {
        @Override
        public MQClientInstance putIfAbsent(String id, MQClientInstance client) {
            install(client, "producerTable", new Groups());
            install(client, "consumerTable", new Groups());
            client.getClientConfig().setMqClientApiTimeout(TIMEOUT_MS);
            return super.putIfAbsent(id, client);
        }
    }

    /** The producers or consumers of one client, by their groups. */
    private static final class Groups extends ConcurrentHashMap<String, Object> {
        @Override
        public Object putIfAbsent(String group, Object client) {
            if (!group.equals(MixAll.CLIENT_INNER_PRODUCER_GROUP)) {
                SPEAKER.get().take(client);
            }
            return super.putIfAbsent(group, client);
        }
    }

    private static void install(Object owner, String name, Object value) {
        try {
            Field field = owner.getClass().getDeclaredField(name);
            field.setAccessible(true);
            field.set(owner, value);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("this release of RocketMQ's client has no table " + name, error);
        }
    }

    /** One program for a number of messages. */
    private static final class Job implements SendMessageHook, ConsumeMessageHook {
        private final JSONObject asked;
        private final long wanted;
        private final int batch;
        private final Semaphore left;
        private final AtomicLong done = new AtomicLong();
        private final AtomicLong failed = new AtomicLong();
        private final AtomicLong firstNs = new AtomicLong();
        private final AtomicLong lastNs = new AtomicLong();
        private final CompletableFuture<Runnable> ending = new CompletableFuture<>();
        private final CountDownLatch ended = new CountDownLatch(1);
        private final CountDownLatch reported;
        private final List<String> said = new CopyOnWriteArrayList<>();
        private final PrintStream record;

        Job(JSONObject asked) throws FileNotFoundException {
            this.asked = asked;
            wanted = asked.getLongValue("messages");
            batch = asked.getIntValue("batch", 1);
            left = new Semaphore(Math.toIntExact(wanted));
            reported = new CountDownLatch(asked.getIntValue("reports", 0));
            String path = asked.getString("record");
            record = path == null ? null : new PrintStream(new FileOutputStream(path), true, StandardCharsets.UTF_8);
        }

        JSONObject run() throws Exception {
            Thread program = new Thread(this::call, "program");
            program.start();
            if (asked.getBooleanValue("endsByItself")) {
                program.join(); // It counts its attempts, failed ones too, and says what it has counted.
            } else {
                ended.await();
                reported.await();
                awaitRest();
            }
            JSONObject told = new JSONObject();
            told.put("messages", done.get());
            told.put("failed", failed.get());
            told.put("seconds", (lastNs.get() - firstNs.get()) / 1e9);
            ending.get().run();
            told.put("said", new JSONArray(said));
            return told;
        }

        /** Until all threads that send stand at the gate: one that came later would have a client that is shut down. */
        private void awaitRest() throws InterruptedException {
            while (left.getQueueLength() < asked.getIntValue("threads", 0)) {
                Thread.sleep(1);
            }
        }

        private void call() {
            SPEAKER.set(this);
            try {
                Class<?> main = Class.forName(PROGRAMS + asked.getString("program"));
                String[] words = asked.getJSONArray("arguments").toArray(new String[0]);
                main.getMethod("main", String[].class).invoke(null, (Object) words);
            } catch (Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        }

        /** Called by the program's own thread when its client registers, before anything is sent or consumed. */
        void take(Object client) {
            if (client instanceof DefaultMQProducerImpl) {
                DefaultMQProducerImpl producer = (DefaultMQProducerImpl) client;
                producer.getDefaultMQProducer().setSendMsgTimeout(TIMEOUT_MS);
                producer.registerSendMessageHook(this);
                ending.complete(producer::shutdown);
            } else {
                DefaultMQPushConsumerImpl consumer = (DefaultMQPushConsumerImpl) client;
                consumer.registerConsumeMessageHook(this);
                ending.complete(consumer::shutdown);
            }
        }

        void hear(String line) {
            if (line.contains("|-")) {
                return; // The logging library about itself.
            }
            said.add(line);
            if (ended.getCount() == 0 && line.contains(REPORT)) {
                reported.countDown();
            }
        }

        @Override
        public String hookName() {
            return "counting";
        }

        @Override
        public void sendMessageBefore(SendMessageContext context) {
            left.acquireUninterruptibly(batch);
            firstNs.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void sendMessageAfter(SendMessageContext context) {
            if (context.getException() == null && context.getSendResult() == null) {
                return; // Handed to the network and not answered yet; it is called again with the answer.
            }
            boolean stored = context.getException() == null
                && context.getSendResult().getSendStatus() == SendStatus.SEND_OK;
            if (!stored) {
                System.err.println(context.getException() != null ? context.getException() : context.getSendResult());
                left.release(batch);
            } else if (record != null) {
                SendResult result = context.getSendResult();
                int queue = result.getMessageQueue().getQueueId();
                record.println(result.getMsgId() + " " + queue + " " + result.getQueueOffset());
            }
            count(stored, batch);
        }

        @Override
        public void consumeMessageBefore(ConsumeMessageContext context) {
            firstNs.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void consumeMessageAfter(ConsumeMessageContext context) {
            count(context.isSuccess(), context.getMsgList().size());
        }

        private void count(boolean well, int messages) {
            long most = asked.getLongValue("failures", FAILURES_UNTIL_THE_END);
            if (!well && failed.addAndGet(messages) >= most) {
                Runtime.getRuntime().halt(1); // Each failure has been told; the rest would be more of the same.
            }
            if (well && done.addAndGet(messages) >= wanted) {
                ended.countDown();
            }
            lastNs.lazySet(System.nanoTime());
        }
    }
}
