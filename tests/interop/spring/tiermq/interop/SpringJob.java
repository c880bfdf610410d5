package tiermq.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * A Spring Boot application as users of rocketmq-spring-boot-starter write it: it sends (plain, delayed, in
 * transactions) by the template and receives by an annotated listener. Prints a line of words, separated by tabs, for
 * each thing that happened.
 */
@SpringBootApplication
public class SpringJob implements CommandLineRunner {
    private static final int PATIENCE_MS = 60_000;
    private static final BlockingQueue<MessageExt> GOT = new LinkedBlockingQueue<>();

    @Autowired
    private RocketMQTemplate template;
    @Value("${job.topic}")
    private String topic;
    @Value("${job.receive}")
    private int receive;

    public static void main(String[] arguments) {
        SpringApplication.exit(SpringApplication.run(SpringJob.class, arguments));
        System.exit(0);
    }

    @Override
    public void run(String... arguments) throws Exception {
        for (int number = 0; number < 5; number++) {
            Message<String> plain = MessageBuilder.withPayload("plain " + number)
                .setHeader(RocketMQHeaders.KEYS, "key-" + number).build();
            SendResult result = template.syncSend(topic + ":paid", plain, PATIENCE_MS);
            tell("sent", result.getSendStatus(), "plain " + number);
        }
        Message<String> delayed = MessageBuilder.withPayload("delayed").build();
        tell("sent", template.syncSend(topic + ":later", delayed, PATIENCE_MS, 1).getSendStatus(), "delayed");
        for (String body : new String[] {"commit", "rollback"}) {
            Message<String> half = MessageBuilder.withPayload(body).build();
            tell("sent", template.sendMessageInTransaction(topic + ":decided", half, body).getSendStatus(), body);
        }
        for (int count = 0; count < receive; count++) {
            MessageExt each = GOT.take();
            tell("received", new String(each.getBody(), StandardCharsets.UTF_8), each.getTags(), each.getKeys(),
                each.getStoreTimestamp() - each.getBornTimestamp());
        }
        tell("done");
    }

    private static synchronized void tell(Object... words) {
        StringBuilder line = new StringBuilder("@");
        for (Object word : words) {
            line.append('\t').append(word);
        }
        System.out.println(line);
    }

    @Component
    @RocketMQMessageListener(topic = "${job.topic}", consumerGroup = "${job.group}", consumeMode = ConsumeMode.ORDERLY)
    static class Listener implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            GOT.add(message);
        }
    }

    @RocketMQTransactionListener
    static class Decided implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return "commit".equals(decision) ? RocketMQLocalTransactionState.COMMIT
                : RocketMQLocalTransactionState.ROLLBACK;
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return RocketMQLocalTransactionState.UNKNOWN;
        }
    }
}
