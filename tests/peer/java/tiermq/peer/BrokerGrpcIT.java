package tiermq.peer;

import apache.rocketmq.v2.QueryAssignmentResponse;
import apache.rocketmq.v2.QueryRouteResponse;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.grpc.v2.GrpcBaseIT;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.junit.Before;
import org.junit.FixMethodOrder;
import org.junit.Test;
import org.junit.runners.MethodSorters;

/**
 * What RocketMQ's LocalGrpcIT does with a proxy in the process of the test, against the gRPC port of a broker of ours:
 * -Dpeer.grpcPort. The tests themselves are RocketMQ's, over TLS as there. Three count queues: there a route has those of
 * three brokers, here of the one that is asked.
 */
@FixMethodOrder(MethodSorters.NAME_ASCENDING)
public class BrokerGrpcIT extends GrpcBaseIT {
    private static final int PORT = Integer.getInteger("peer.grpcPort");

    @Before
    @Override
    public void setUp() throws Exception {
        super.setUp();
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, NAMESRV_ADDR); // There the proxy does, for all of its process.
        ConfigurationManager.getProxyConfig().setGrpcServerPort(PORT); // What answers are compared with.
        blockingStub = createBlockingStub(createChannel(PORT));
        stub = createStub(createChannel(PORT));
    }

    @Test
    public void testQueryRoute() throws Exception {
        String topic = initTopic();
        QueryRouteResponse response = blockingStub.queryRoute(buildQueryRouteRequest(topic));
        assertQueryRoute(response, DEFAULT_QUEUE_NUMS);
    }

    @Test
    @Override
    public void testQueryAssignment() throws Exception {
        QueryAssignmentResponse response =
            blockingStub.queryAssignment(buildQueryAssignmentRequest(initTopic(), "group"));
        assertQueryAssignment(response, 1);
    }

    @Test
    @Override
    public void testQueryFifoAssignment() throws Exception {
        String topic = initTopic(TopicMessageType.FIFO);
        String group = MQRandomUtils.getRandomConsumerGroup();
        SubscriptionGroupManager groups = brokerController1.getSubscriptionGroupManager();
        SubscriptionGroupConfig inOrder = groups.findSubscriptionGroupConfig(group);
        inOrder.setConsumeMessageOrderly(true);
        groups.updateSubscriptionGroupConfig(inOrder);
        QueryAssignmentResponse response = blockingStub.queryAssignment(buildQueryAssignmentRequest(topic, group));
        assertQueryAssignment(response, DEFAULT_QUEUE_NUMS);
    }

    @Test
    @Override
    public void testTransactionCheckThenCommit() {
        super.testTransactionCheckThenCommit();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecvDelayMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvDelayMessage();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecallDelayMessage() throws Exception {
        super.testSimpleConsumerSendAndRecallDelayMessage();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecvBigMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvBigMessage();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecv() throws Exception {
        super.testSimpleConsumerSendAndRecv();
    }

    @Test
    @Override
    public void testSimpleConsumerToDLQ() throws Exception {
        super.testSimpleConsumerToDLQ();
    }

    @Test
    @Override
    public void testConsumeOrderly() throws Exception {
        super.testConsumeOrderly();
    }

    @Test
    @Override
    public void testSimpleConsumerSendAndRecvPriorityMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvPriorityMessage();
    }
}
