import apache.rocketmq.v2.*;
import com.google.protobuf.ByteString;
import com.google.protobuf.util.Durations;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Load of `bench grpc`, by the stubs that RocketMQ's own proxy is built from: `prepare endpoints=… topic=… group=…
 * connections=…` once, then `run work=send|receive|bystander messages=… callers=… bytes=…`, or `wait count=… topic=…`,
 * each answered by a JSON line. Every call has metadata as RocketMQ's Java client sends it.
 */
public final class GrpcLoad {
    private static final int BATCH = 32;
    /** Both brokers let 1,024 wait for one topic of a group (popPollingSize). */
    private static final int OF_ONE_GROUP = 500;
    private static Map<String, String> asked = new HashMap<>();
    private static final List<Client> CLIENTS = new ArrayList<>();
    private static String group;

    private static final class Client {
        final ManagedChannel channel;
        final Channel calls;
        final MessagingServiceGrpc.MessagingServiceBlockingStub blocking;
        final MessagingServiceGrpc.MessagingServiceStub stub;
        StreamObserver<TelemetryCommand> telemetry;

        Client(String target, String id) {
            channel = NettyChannelBuilder.forTarget(target).usePlaintext().build();
            Metadata metadata = new Metadata();
            String[][] fields = {{"x-mq-client-id", id}, {"x-mq-language", "JAVA"}, {"x-mq-protocol", "v2"},
                {"x-mq-client-version", "5.1.0"}, {"x-mq-date-time", "20261119T040506Z"},
                {"x-mq-request-id", UUID.randomUUID().toString()}};
            for (String[] each : fields) {
                metadata.put(Metadata.Key.of(each[0], Metadata.ASCII_STRING_MARSHALLER), each[1]);
            }
            calls = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
            blocking = MessagingServiceGrpc.newBlockingStub(calls);
            stub = MessagingServiceGrpc.newStub(calls);
        }

        /** Tells who it is, and waits for the answer. */
        void settle(Settings settings) throws Exception {
            CountDownLatch answered = new CountDownLatch(1);
            telemetry = stub.telemetry(new StreamObserver<TelemetryCommand>() {
                @Override
                public void onNext(TelemetryCommand command) {
                    if (command.hasSettings()) answered.countDown();
                }

                @Override
                public void onError(Throwable error) {
                    error.printStackTrace();
                }

                @Override
                public void onCompleted() {
                }
            });
            telemetry.onNext(TelemetryCommand.newBuilder().setSettings(settings).build());
            if (!answered.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("no settings came back");
        }
    }

    private static Resource resource(String name) {
        return Resource.newBuilder().setName(name).build();
    }

    private static Settings settings(boolean produces, String topic) {
        if (produces) {
            return Settings.newBuilder().setClientType(ClientType.PRODUCER)
                .setPublishing(Publishing.newBuilder().addTopics(resource(topic))).build();
        }
        return Settings.newBuilder().setClientType(ClientType.SIMPLE_CONSUMER).setSubscription(Subscription.newBuilder()
            .setGroup(resource(group)).addSubscriptions(SubscriptionEntry.newBuilder().setTopic(resource(topic))
                .setExpression(all()))).build();
    }

    private static FilterExpression all() {
        return FilterExpression.newBuilder().setType(FilterType.TAG).setExpression("*").build();
    }

    private static SendMessageRequest message(String topic, ByteString body, String id) {
        SystemProperties system = SystemProperties.newBuilder().setMessageId(id).setMessageType(MessageType.NORMAL)
            .setBodyEncoding(Encoding.IDENTITY).setBornTimestamp(com.google.protobuf.util.Timestamps.fromMillis(
                System.currentTimeMillis())).setBornHost("load").setTag("paid").addKeys("order-42").build();
        return SendMessageRequest.newBuilder().addMessages(Message.newBuilder().setTopic(resource(topic))
            .setSystemProperties(system).setBody(body)).build();
    }

    private static ReceiveMessageRequest receive(String topic, String group) {
        return ReceiveMessageRequest.newBuilder().setGroup(resource(group)).setMessageQueue(MessageQueue.newBuilder()
            .setTopic(resource(topic)).setId(-1)).setFilterExpression(all()).setBatchSize(BATCH)
            .setInvisibleDuration(Durations.fromSeconds(300)).setLongPollingTimeout(Durations.fromSeconds(20)).build();
    }

    // Works.

    private interface Work {
        void run(Client client, AtomicInteger left) throws Exception;
    }

    private static void sends(Client client, AtomicInteger left) {
        String topic = asked.get("topic");
        ByteString body = ByteString.copyFrom(new byte[number("bytes")]);
        for (int at = left.decrementAndGet(); at >= 0; at = left.decrementAndGet()) {
            SendMessageResponse answer = client.blocking.withDeadlineAfter(60, TimeUnit.SECONDS)
                .sendMessage(message(topic, body, "01" + UUID.randomUUID()));
            if (answer.getStatus().getCode() != Code.OK) throw new IllegalStateException(answer.toString());
        }
    }

    private static void receives(Client client, AtomicInteger left) {
        String topic = asked.get("topic");
        while (left.get() > 0) {
            AckMessageRequest.Builder acks = AckMessageRequest.newBuilder().setGroup(resource(group)).setTopic(resource(topic));
            Iterator<ReceiveMessageResponse> answers = client.blocking.withDeadlineAfter(60, TimeUnit.SECONDS)
                .receiveMessage(receive(topic, group));
            while (answers.hasNext()) {
                ReceiveMessageResponse each = answers.next();
                if (each.hasMessage()) {
                    SystemProperties system = each.getMessage().getSystemProperties();
                    acks.addEntries(AckMessageEntry.newBuilder().setMessageId(system.getMessageId())
                        .setReceiptHandle(system.getReceiptHandle()));
                }
            }
            if (acks.getEntriesCount() == 0) continue;
            AckMessageResponse answer = client.blocking.withDeadlineAfter(60, TimeUnit.SECONDS).ackMessage(acks.build());
            if (answer.getStatus().getCode() != Code.OK) throw new IllegalStateException(answer.toString());
            left.addAndGet(-acks.getEntriesCount());
        }
    }

    /** `callers` threads share the work, spread over the connections. */
    private static String timed(Work work) throws Exception {
        int count = number("messages"), callers = number("callers");
        AtomicInteger left = new AtomicInteger(count);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        long began = System.nanoTime();
        for (int at = 0; at < callers; at++) {
            Client client = CLIENTS.get(at % CLIENTS.size());
            Thread thread = new Thread(() -> {
                try {
                    work.run(client, left);
                } catch (Throwable error) {
                    failed.set(error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread each : threads) each.join();
        if (failed.get() != null) throw new IllegalStateException(failed.get());
        double seconds = (System.nanoTime() - began) / 1e9;
        return "{\"messages\":" + (work == RECEIVES ? count - left.get() : count) + ",\"seconds\":" + seconds + "}";
    }

    private static final Work SENDS = GrpcLoad::sends;
    private static final Work RECEIVES = GrpcLoad::receives;

    /** One send after the other: how long each took. */
    private static String bystander() {
        long[] nanos = new long[number("messages")];
        ByteString body = ByteString.copyFrom(new byte[number("bytes")]);
        for (int at = 0; at < nanos.length; at++) {
            long began = System.nanoTime();
            CLIENTS.get(0).blocking.sendMessage(message(asked.get("topic"), body, "01" + UUID.randomUUID()));
            nanos[at] = System.nanoTime() - began;
        }
        Arrays.sort(nanos);
        return "{\"p50_ms\":" + nanos[nanos.length / 2] / 1e6 + ",\"p99_ms\":" + nanos[nanos.length * 99 / 100] / 1e6 + "}";
    }

    /** Receives that wait: answered when all have been asked for, and the server has had time to take them. */
    private static String waiting() throws Exception {
        AtomicInteger ended = new AtomicInteger();
        int count = number("count");
        for (int at = 0; at < count; at++) {
            CLIENTS.get(at % CLIENTS.size()).stub.withDeadlineAfter(120, TimeUnit.SECONDS)
                .receiveMessage(receive(asked.get("topic"), group + "-" + at / OF_ONE_GROUP), new StreamObserver<ReceiveMessageResponse>() {
                    @Override
                    public void onNext(ReceiveMessageResponse answer) {
                    }

                    @Override
                    public void onError(Throwable error) {
                        ended.incrementAndGet();
                    }

                    @Override
                    public void onCompleted() {
                        ended.incrementAndGet();
                    }
                });
        }
        Thread.sleep(3_000);
        return "{\"waiting\":" + (count - ended.get()) + "}";
    }

    private static int number(String name) {
        return Integer.parseInt(asked.get(name));
    }

    private static String prepare() throws Exception {
        group = asked.get("group");
        for (int at = 0; at < number("connections"); at++) {
            Client client = new Client(asked.get("endpoints"), "load-" + at + "-" + UUID.randomUUID());
            client.settle(settings(asked.get("work").equals("send"), asked.get("topic")));
            CLIENTS.add(client);
        }
        return "{}";
    }

    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            for (int at = 1; at < parts.length; at++) {
                String[] pair = parts[at].split("=", 2);
                asked.put(pair[0], pair[1]);
            }
            String answer;
            if (parts[0].equals("prepare")) answer = prepare();
            else if (parts[0].equals("wait")) answer = waiting();
            else if (asked.get("work").equals("send")) answer = timed(SENDS);
            else if (asked.get("work").equals("receive")) answer = timed(RECEIVES);
            else answer = bystander();
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }
}
