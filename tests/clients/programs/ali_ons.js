// Drives the npm package `ali-ons`, a client in JavaScript alone.
//
// One JSON object is the job: nameServer, topic, group, and either
//   bodies: [...], optional tag, key             →  {"sent": {...}} for each
//   receive: n, optional tag, sql, failures: n   →  {"received": {...}} for each; the first `failures` are given back
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const job = JSON.parse(process.argv[2]);
const tell = event => process.stdout.write(JSON.stringify(event) + '\n');
const options = {
  httpclient: { request() { throw new Error('no address server is asked here'); } },
  nameSrv: [ job.nameServer ],
  accessKeyId: '',
  accessKeySecret: '',
  logger: { info() {}, debug() {}, warn() {}, error: problem => process.stderr.write(`${problem}\n`) },
};

async function send() {
  const producer = new Producer({ ...options, producerGroup: job.group });
  await producer.ready();
  for (const body of job.bodies) {
    const message = new Message(job.topic, job.tag || '', body);
    if (job.key) message.keys = [ job.key ];
    const result = await producer.send(message);
    tell({ sent: { status: result.sendStatus, id: result.msgId, offset: result.queueOffset } });
  }
  await producer.close();
}

async function receive() {
  const consumer = new Consumer({ ...options, consumerGroup: job.group });
  consumer.on('error', error => process.stderr.write(`${error.stack}\n`));
  const expression = job.sql ? { expressionType: 'SQL92', subString: job.sql } : job.tag || '*';
  let failures = job.failures || 0;
  let left = job.receive;
  await new Promise(done => {
    consumer.subscribe(job.topic, expression, async message => {
      tell({ received: {
        body: message.body.toString(),
        tag: message.tags || '',
        key: message.keys || '',
        queue: message.queueId,
        offset: Number(message.queueOffset),
        times: message.reconsumeTimes,
      } });
      left -= 1;
      if (left === 0) setImmediate(done);
      if (failures-- > 0) throw new Error('given back on purpose');
    });
  });
  await consumer.close();
}

(job.bodies ? send() : receive()).then(() => tell({ done: true }), error => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
