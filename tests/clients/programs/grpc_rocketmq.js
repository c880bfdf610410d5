// Drives the npm package `rocketmq-client-nodejs`, which speaks gRPC. The job is that of grpc_rocketmq.py.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const job = JSON.parse(process.argv[2]);
const tell = event => process.stdout.write(JSON.stringify(event) + '\n');
const COMMIT = 1;
const SQL = 2;
const INVISIBLE_MS = 60000;
const AGAIN_MS = 10000;
const logger = { info() {}, warn: console.error, error: console.error, debug() {} };
const options = { endpoints: job.endpoints, namespace: '', logger, requestTimeout: 30000, sslEnabled: job.tls === true };
if (job.accessKey) options.sessionCredentials = { accessKey: job.accessKey, accessSecret: job.secretKey };

async function send() {
  let checked;
  const asked = new Promise(done => { checked = done; });
  const checker = { check: async view => { checked(view.body.toString()); return COMMIT; } };
  const producer = new Producer({ ...options, topic: job.topic, ...(job.transaction ? { checker } : {}) });
  await producer.startup();
  for (const body of job.bodies) {
    const message = { topic: job.topic, body: Buffer.from(body), tag: job.tag || 'paid', keys: [`key-${body.slice(0, 40)}`] };
    if (job.messageGroup) message.messageGroup = job.messageGroup;
    if (job.priority) message.priority = job.priority;
    if (job.delayS) message.delay = job.delayS * 1000;
    if (job.properties) message.properties = new Map(Object.entries(job.properties));
    const transaction = job.transaction ? producer.beginTransaction() : undefined;
    const receipt = await producer.send(message, transaction);
    tell({ sent: { id: receipt.messageId, offset: Number(receipt.offset) } });
    if (job.recall) tell({ recalled: (await producer.recallMessage(job.topic, receipt.recallHandle)).messageId });
    if (job.transaction === 'lost') {
      tell({ checked: await asked });
      await new Promise(done => setTimeout(done, 1000)); // Its answer leaves behind the check.
    } else if (transaction) {
      await (job.transaction === 'commit' ? transaction.commit() : transaction.rollback());
    }
  }
  await producer.shutdown();
}

const told = view => {
  const body = view.body.toString();
  tell({ received: { body, attempt: view.deliveryAttempt, tag: view.tag, id: view.messageId } });
  return body;
};
const filter = () => (job.sql ? new FilterExpression(job.sql, SQL) : job.only || '*');

async function receive() {
  const subscriptions = new Map([[ job.topic, filter() ]]);
  const consumer = new SimpleConsumer({ ...options, consumerGroup: job.group, subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  const again = new Set(job.again || []);
  for (let left = job.receive; left > 0;) {
    for (const view of await consumer.receive(32, INVISIBLE_MS)) {
      const body = told(view);
      if (again.delete(body)) {
        await consumer.changeInvisibleDuration(view, AGAIN_MS);
      } else {
        await consumer.ack(view);
        left -= 1;
      }
    }
  }
  await consumer.shutdown();
}

async function push() {
  const again = new Set(job.again || []);
  let left = job.receive;
  let consumer;
  const over = new Promise(done => {
    const messageListener = {
      async consume(view) {
        const body = told(view);
        if ((job.hold || []).includes(body)) await new Promise(() => {});
        if (again.delete(body) || (job.fail || []).includes(body)) return ConsumeResult.FAILURE;
        left -= 1;
        if (left === 0) setTimeout(done, 1000); // The last acknowledgement leaves behind the listener.
        return ConsumeResult.SUCCESS;
      },
    };
    const subscriptions = new Map([[ job.topic, filter() ]]);
    consumer = new PushConsumer({ ...options, consumerGroup: job.group, subscriptions, messageListener });
  });
  await consumer.startup();
  await over;
  await consumer.shutdown();
}

(job.bodies ? send() : job.push ? push() : receive()).then(() => tell({ done: true }), error => {
  tell({ failed: `${error.name}: ${error.message}` });
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
