import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** A message or a result as JSON: every field of the stored record, the body as its reader sees it. */
final class Described {
    private Described() {
    }

    static JSONObject message(MessageExt message) {
        JSONObject described = new JSONObject();
        described.put("topic", message.getTopic());
        described.put("queue", message.getQueueId());
        described.put("offset", message.getQueueOffset());
        described.put("physical_offset", message.getCommitLogOffset());
        described.put("size", message.getStoreSize());
        described.put("sys_flag", message.getSysFlag());
        described.put("flag", message.getFlag());
        described.put("body_crc", message.getBodyCRC());
        described.put("born_timestamp", message.getBornTimestamp());
        described.put("store_timestamp", message.getStoreTimestamp());
        described.put("born_host", host(message.getBornHost()));
        described.put("store_host", host(message.getStoreHost()));
        described.put("reconsume_times", message.getReconsumeTimes());
        described.put("prepared_offset", message.getPreparedTransactionOffset());
        described.put("offset_id", offsetId(message));
        described.put("body", Base64.getEncoder().encodeToString(message.getBody() == null ? new byte[0] : message.getBody()));
        described.put("properties", storedProperties(message));
        return described;
    }

    static JSONObject result(SendResult result) {
        JSONObject described = new JSONObject();
        described.put("status", result.getSendStatus().name());
        described.put("unique_id", result.getMsgId());
        described.put("offset_id", result.getOffsetMsgId());
        described.put("queue", result.getMessageQueue().getQueueId());
        described.put("offset", result.getQueueOffset());
        return described;
    }

    /** The client adds the queue's bounds to each pulled message; they are not in the record. */
    private static Map<String, String> storedProperties(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        return properties;
    }

    private static String offsetId(MessageExt message) {
        return MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset());
    }

    private static String host(SocketAddress address) {
        InetSocketAddress internet = (InetSocketAddress) address;
        return internet.getAddress().getHostAddress() + ":" + internet.getPort();
    }
}
