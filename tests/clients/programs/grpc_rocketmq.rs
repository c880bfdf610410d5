// Drives the crate `rocketmq`, which speaks gRPC. The job is that of grpc_rocketmq.py, as far as the crate goes: no push
// consumer, no recall, no TLS.
use std::collections::HashMap;
use std::error::Error;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

type Done = Result<(), Box<dyn Error>>;
const INVISIBLE: Duration = Duration::from_secs(60);

fn tell(event: Value) {
    println!("{event}");
}

fn text(job: &Value, name: &str, otherwise: &str) -> String {
    job[name].as_str().unwrap_or(otherwise).to_string()
}

fn client(job: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(job, "endpoints", ""));
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(30));
    if job["accessKey"].is_string() {
        option.set_access_key(text(job, "accessKey", ""));
        option.set_secret_key(text(job, "secretKey", ""));
    }
    option
}

fn message(job: &Value, body: &str) -> MessageBuilder {
    let topic = text(job, "topic", "");
    let mut made = MessageBuilder::builder()
        .set_topic(topic)
        .set_body(body.as_bytes().to_vec())
        .set_tag(text(job, "tag", "paid"))
        .set_keys(vec![format!("key-{}", body.chars().take(40).collect::<String>())]);
    if let Some(group) = job["messageGroup"].as_str() {
        made = made.set_message_group(group);
    }
    if let Some(delay) = job["delayS"].as_u64() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        made = made.set_delivery_timestamp((now + delay) as i64);
    }
    if let Some(own) = job["properties"].as_object() {
        let pairs = own.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap_or("").to_string()));
        made = made.set_properties(pairs.collect::<HashMap<String, String>>());
    }
    made
}

async fn send(job: &Value) -> Done {
    let mut option = ProducerOption::default();
    option.set_topics(vec![text(job, "topic", "")]);
    let kind = job["transaction"].as_str();
    let (checked, asked) = mpsc::channel();
    let mut producer = if kind.is_some() {
        let checked = std::sync::Mutex::new(checked);
        let checker = Box::new(move |_id: String, view: rocketmq::model::message::MessageView| {
            let body = String::from_utf8_lossy(view.body()).into_owned();
            checked.lock().unwrap().send(body).unwrap();
            TransactionResolution::COMMIT
        });
        Producer::new_transaction_producer(option, client(job), checker)?
    } else {
        Producer::new(option, client(job))?
    };
    producer.start().await?;
    for each in job["bodies"].as_array().unwrap() {
        let made = message(job, each.as_str().unwrap());
        let Some(kind) = kind else {
            let receipt = producer.send(made.build()?).await?;
            tell(json!({"sent": {"id": receipt.message_id()}}));
            continue;
        };
        let begun = producer.send_transaction_message(made.enable_transaction().build()?).await?;
        tell(json!({"sent": {"id": begun.message_id()}}));
        match kind {
            "commit" => begun.commit().await?,
            "rollback" => begun.rollback().await?,
            _ => {
                while let Err(mpsc::TryRecvError::Empty) = asked.try_recv().map(|body| tell(json!({"checked": body}))) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await; // Its answer leaves behind the check.
            }
        }
    }
    Ok(producer.shutdown().await?)
}

async fn receive(job: &Value) -> Done {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![text(job, "topic", "")]);
    option.set_consumer_group(text(job, "group", ""));
    let mut consumer = SimpleConsumer::new(option, client(job))?;
    consumer.start().await?;
    let wanted = match job["sql"].as_str() {
        Some(sql) => FilterExpression::new(FilterType::Sql, sql),
        None => FilterExpression::new(FilterType::Tag, text(job, "only", "*")),
    };
    let mut left = job["receive"].as_u64().unwrap();
    while left > 0 {
        for view in consumer.receive_with(text(job, "topic", ""), &wanted, 32, INVISIBLE).await? {
            let body = String::from_utf8_lossy(view.body()).into_owned();
            let (attempt, tag, id) = (view.delivery_attempt(), view.tag(), view.message_id());
            tell(json!({"received": {"body": body, "attempt": attempt, "tag": tag, "id": id}}));
            consumer.ack(&view).await?;
            left -= 1;
        }
    }
    Ok(consumer.shutdown().await?)
}

#[tokio::main]
async fn main() -> Done {
    let job: Value = serde_json::from_str(&std::env::args().nth(1).unwrap())?;
    let outcome = if job["bodies"].is_array() { send(&job).await } else { receive(&job).await };
    match &outcome {
        Ok(()) => tell(json!({"done": true})),
        Err(error) => tell(json!({"failed": error.to_string()})),
    }
    outcome
}
