import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What mqadmin would do: topics, queries by key, messages by id, offsets by time. */
final class Administration {
    private final Address address;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(Address.PATIENCE_MS);

    Administration(Address address) throws Exception {
        this.address = address;
        admin.setNamesrvAddr(address.nameServer);
        admin.setInstanceName("administration");
        admin.setMqClientApiTimeout(Address.PATIENCE_MS);
        admin.start();
        awaitBroker();
    }

    /** A broker says that it has started before the name server knows it and its topics. */
    private void awaitBroker() throws Exception {
        while (!admin.examineBrokerClusterInfo().getBrokerAddrTable().containsKey(address.brokerName)) {
            Thread.sleep(50);
        }
    }

    Object createTopic(JSONObject command) throws Exception {
        int queues = command.getIntValue("queues");
        TopicConfig topic = new TopicConfig(command.getString("topic"), queues, queues);
        Map<String, String> attributes = new HashMap<>();
        JSONObject asked = command.getJSONObject("attributes");
        if (asked != null) {
            for (String name : asked.keySet()) {
                attributes.put("+" + name, asked.getString(name));
            }
        }
        topic.setAttributes(attributes);
        admin.createAndUpdateTopicConfig(address.broker, topic);
        awaitRoute(command.getString("topic"));
        return true;
    }

    /** The broker registers a new topic at the name server on its own time; a producer needs the route. */
    private void awaitRoute(String topic) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (MQClientException notYet) {
                if (notYet.getResponseCode() != ResponseCode.TOPIC_NOT_EXIST || attempt == 200) {
                    throw notYet;
                }
                Thread.sleep(50);
            }
        }
    }

    /** By a user's key, or with "unique" by the id that a producer gave the message: two different requests. */
    JSONArray query(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        String key = command.getString("key");
        int max = command.getIntValue("max", 64);
        JSONArray found = new JSONArray();
        try {
            QueryResult result = command.getBooleanValue("unique")
                ? admin.queryMessageByUniqKey(address.cluster, topic, key, max, 0, Long.MAX_VALUE)
                : admin.queryMessage(topic, key, max, 0, Long.MAX_VALUE);
            for (MessageExt message : result.getMessageList()) {
                found.add(Described.message(message));
            }
        } catch (MQClientException nothing) {
            if (nothing.getResponseCode() != ResponseCode.NO_MESSAGE) {
                throw nothing;
            }
        }
        return found;
    }

    long offsetAt(JSONObject command) throws Exception {
        MessageQueue queue = address.queue(command.getString("topic"), command.getIntValue("queue"));
        return admin.searchOffset(queue, command.getLongValue("timestamp"));
    }

    /** What the hour of `deleteWhen` would do, at the cleaner's next round. */
    boolean deleteExpired() throws Exception {
        return admin.deleteExpiredCommitLogByAddr(address.broker);
    }

    JSONObject view(JSONObject command) throws Exception {
        return Described.message(admin.viewMessage(command.getString("topic"), command.getString("offset_id")));
    }

    void close() {
        admin.shutdown();
    }
}
