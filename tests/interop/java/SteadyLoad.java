import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A steady load from RocketMQ's own client on a fleet whose brokers come and go: one thread for each broker, which sends
 * one message after the other to its queues in turn, each once. A send that failed is not repeated, so that no message
 * is ever stored twice by the producer's own doing; the next one has another number.
 *
 * A job is one JSON object on one line: {"topic", "name", "brokers", "queues", "bytes", "pauseMs"} begins a load, and
 * {} ends it. Every acknowledged message is one line "broker queue offset number tookNs" of the output, and the end of a
 * load is "end FAILED". Message number n of broker b has the key NAME-b-n, and its body begins with that.
 *
 * Usage: java SteadyLoad NAME_SERVER
 */
public final class SteadyLoad {
    private static final PrintStream ANSWERS = System.out;

    public static void main(String[] arguments) {
        try {
            work(arguments[0]);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // The client's own threads would keep the process alive.
        }
    }

    private static void work(String nameServer) throws Exception {
        System.setOut(System.err);
        DefaultMQProducer producer = new DefaultMQProducer("steady_load");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1_000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            JSONObject job = JSON.parseObject(line);
            Load load = new Load(producer, job);
            jobs.readLine();
            load.end();
        }
        producer.shutdown();
    }

    private static final class Load {
        private final DefaultMQProducer producer;
        private final JSONObject job;
        private final List<Thread> threads = new ArrayList<>();
        private final AtomicLong failed = new AtomicLong();
        private volatile boolean ending;

        Load(DefaultMQProducer producer, JSONObject job) {
            this.producer = producer;
            this.job = job;
            for (String broker : job.getJSONArray("brokers").toJavaList(String.class)) {
                Thread thread = new Thread(() -> send(broker));
                threads.add(thread);
                thread.start();
            }
        }

        private void send(String broker) {
            int queues = job.getIntValue("queues");
            for (long number = 0; !ending; number++) {
                String key = job.getString("name") + "-" + broker + "-" + number;
                byte[] head = (key + " ").getBytes(StandardCharsets.US_ASCII);
                byte[] body = Arrays.copyOf(head, head.length + (int) (number * 37 % job.getIntValue("bytes")));
                Message message = new Message(job.getString("topic"), "load", key, body);
                int queue = (int) (number % queues);
                long before = System.nanoTime();
                try {
                    SendResult result = producer.send(message, new MessageQueue(message.getTopic(), broker, queue));
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        tell(broker + " " + queue + " " + result.getQueueOffset() + " " + number + " "
                            + (System.nanoTime() - before));
                    } else {
                        failed.incrementAndGet();
                    }
                    Thread.sleep(job.getIntValue("pauseMs"));
                } catch (Exception error) {
                    failed.incrementAndGet();
                    pause();
                }
            }
        }

        private static void pause() {
            try {
                Thread.sleep(100);
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
        }

        void end() throws InterruptedException {
            ending = true;
            for (Thread thread : threads) {
                thread.join();
            }
            tell("end " + failed.get());
        }
    }

    private static synchronized void tell(String line) {
        ANSWERS.println(line);
        ANSWERS.flush();
    }
}
