// Drives the npm package `rocketmq-nodejs`, which wraps a newer build of RocketMQ's C++ client.
//
// One JSON object is the job: nameServer, topic, group, and either
//   bodies: [...], optional tag, key             →  {"sent": {...}} for each
//   receive: n, optional tag, failures: n        →  {"received": {...}} for each; the first `failures` are given back
'use strict';

const { Producer, PushConsumer } = require('rocketmq-nodejs');

const job = JSON.parse(process.argv[2]);
const tell = event => process.stdout.write(JSON.stringify(event) + '\n');
const options = { nameServer: job.nameServer, logLevel: 'error' };

async function send() {
  const producer = new Producer(job.group, { ...options, sendMessageTimeout: 30000 });
  await producer.start();
  for (const body of job.bodies) {
    const more = {};
    if (job.tag) more.tags = job.tag;
    if (job.key) more.keys = job.key;
    const result = await producer.send(job.topic, body, more);
    tell({ sent: { status: result.statusStr, id: result.msgId, offset: result.offset } });
  }
  await producer.shutdown();
}

async function receive() {
  const consumer = new PushConsumer(job.group, { ...options, threadCount: 1, maxBatchSize: 1 });
  consumer.subscribe(job.topic, job.tag || '*');
  let failures = job.failures || 0;
  let left = job.receive;
  const received = new Promise(done => {
    consumer.on('message', (message, ack) => {
      tell({ received: { body: message.body, tag: message.tags || '', key: message.keys || '' } });
      ack.done(failures-- <= 0);
      left -= 1;
      if (left === 0) setImmediate(done);
    });
  });
  await consumer.start();
  await received;
  await consumer.shutdown();
}

(job.bodies ? send() : receive()).then(() => tell({ done: true }), error => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
