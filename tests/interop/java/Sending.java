import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageBatch;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** The producers: one per way of compression, and one for transactions. */
@SuppressWarnings("deprecation")
final class Sending {
    private final Address address;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private TransactionMQProducer transactions;

    Sending(Address address) {
        this.address = address;
    }

    JSONObject one(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command.getString("compression"));
        SendResult result = producer.send(message(command),
            address.queue(command.getString("topic"), command.getIntValue("queue")));
        return Described.result(result);
    }

    /** Built by hand, not by the producer, so that the batch's own unique id can be chosen by the test too. */
    JSONObject batch(JSONObject command) throws Exception {
        List<Message> messages = new ArrayList<>();
        JSONArray asked = command.getJSONArray("messages");
        for (int i = 0; i < asked.size(); i++) {
            messages.add(message(asked.getJSONObject(i)));
        }
        MessageBatch batch = MessageBatch.generateFromList(messages);
        for (Message message : batch) {
            MessageClientIDSetter.setUniqID(message);
        }
        if (command.getString("unique_id") != null) {
            MessageAccessor.putProperty(batch, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                command.getString("unique_id"));
        }
        MessageClientIDSetter.setUniqID(batch);
        batch.setBody(batch.encode());
        SendResult result = producer("none").getDefaultMQProducerImpl().send(batch,
            address.queue(batch.getTopic(), command.getIntValue("queue")));
        return Described.result(result);
    }

    JSONObject transaction(JSONObject command) throws Exception {
        if (transactions == null) {
            transactions = new TransactionMQProducer("interop-transactions");
            transactions.setNamesrvAddr(address.nameServer);
            transactions.setInstanceName("transactions");
            transactions.setSendMsgTimeout(Address.PATIENCE_MS);
            transactions.setMqClientApiTimeout(Address.PATIENCE_MS);
            transactions.setTransactionListener(new AsAsked());
            transactions.start();
        }
        return Described.result(transactions.sendMessageInTransaction(message(command), command.getString("decision")));
    }

    private Message message(JSONObject command) {
        Message message = new Message(command.getString("topic"), Base64.getDecoder().decode(command.getString("body")));
        if (command.getString("tags") != null) {
            message.setTags(command.getString("tags"));
        }
        JSONArray keys = command.getJSONArray("keys");
        if (keys != null && !keys.isEmpty()) {
            message.setKeys(keys.toJavaList(String.class));
        }
        JSONObject properties = command.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                if (MessageConst.STRING_HASH_SET.contains(name)) {
                    MessageAccessor.putProperty(message, name, properties.getString(name));
                } else {
                    message.putUserProperty(name, properties.getString(name));
                }
            }
        }
        if (command.getIntValue("delay_level") > 0) {
            message.setDelayTimeLevel(command.getIntValue("delay_level"));
        }
        if (command.getString("unique_id") != null) {
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                command.getString("unique_id"));
        }
        message.setFlag(command.getIntValue("flag"));
        return message;
    }

    private DefaultMQProducer producer(String asked) throws Exception {
        String compression = asked == null ? "none" : asked;
        DefaultMQProducer producer = producers.get(compression);
        if (producer == null) {
            producer = new DefaultMQProducer("interop-" + compression);
            producer.setNamesrvAddr(address.nameServer);
            producer.setInstanceName("sending-" + compression);
            producer.setSendMsgTimeout(Address.PATIENCE_MS);
            producer.setMqClientApiTimeout(Address.PATIENCE_MS);
            if (compression.equals("none")) {
                producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            } else {
                producer.setCompressType(CompressionType.of(compression.toUpperCase()));
            }
            producer.start();
            producers.put(compression, producer);
        }
        return producer;
    }

    void close() {
        for (DefaultMQProducer producer : producers.values()) {
            producer.shutdown();
        }
        if (transactions != null) {
            transactions.shutdown();
        }
    }

    /** Commits or rolls back as the test said; "unknown" leaves the half message open. */
    private static final class AsAsked implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            switch ((String) decision) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }
}
