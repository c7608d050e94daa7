//! A client from openapi-generator's `rust`. Usage: client URL TOPIC

use oncelog_client::{
    apis::{
        Error, appends_api::append_to_topic, configuration::Configuration,
        reads_api::read_partition, sessions_api::open_session, topics_api::put_topic,
        transactions_api::begin_transaction,
    },
    models::{
        Append, BeginTransaction, ErrorCode, OpenSession, Problem, PutTopic, Record, Retry,
        TransactionAppend,
    },
};
use serde_json::json;

fn decide(problem: &Problem) -> &'static str {
    match problem.retry {
        Retry::Same | Retry::Later => "send it again",
        Retry::Reopen => "open the session again",
        Retry::Never if problem.code == ErrorCode::ProducerFenced => {
            "stop: a newer session is open"
        }
        Retry::Never => "change the request",
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, topic] = &arguments[..] else { return Err("usage: client URL TOPIC".into()) };
    let server = &Configuration { base_path: url.clone(), ..Configuration::default() };

    let one = PutTopic { partition_count: Some(Some(1)), ..PutTopic::default() };
    put_topic(server, topic, Some(one)).await?;
    let named = OpenSession { transactional_id: Some(Some(topic.clone())), ..OpenSession::new() };
    let session = open_session(server, None, Some(named.clone())).await?;
    println!("session: epoch {}", session.epoch);

    let first = Record {
        key: Some(Some("customer-7".into())),
        value: Some(Some(json!({"total": 12.5}))),
        ..Record::new()
    };
    let second = Record { value_base64: Some(Some("AAEC".into())), ..Record::new() };
    let mut batch = Append {
        producer_id: Some(Some(session.producer_id)),
        epoch: Some(Some(session.epoch)),
        sequence: Some(Some(0)),
        ..Append::new(vec![first, second])
    };
    for attempt in ["append", "repeat"] {
        let batch = batch.clone();
        let done =
            append_to_topic(server, topic, batch, None, None, None, None, None, None).await?;
        let count = done.offsets.unwrap_or_default().len();
        println!("{attempt}: {count} records, duplicate {}", done.duplicate);
    }

    let read = read_partition(server, topic, 0, Some("0"), None, None, None, None, None).await?;
    let value = read.records[0].value.clone().flatten().unwrap_or_default();
    println!("read: {} records, total {}", read.records.len(), value["total"]);

    let invoiced = Record { value: Some(Some(json!("invoiced"))), ..Record::new() };
    let begin = BeginTransaction {
        commit: Some(Some(true)),
        appends: Some(Some(vec![TransactionAppend::new(topic.clone(), vec![invoiced])])),
        ..BeginTransaction::new()
    };
    let key = format!("evt-{topic}");
    let done = begin_transaction(server, Some(&key), Some(begin)).await?;
    let count = done.appends.flatten().unwrap_or_default()[0].record_count;
    println!("transaction: {}, {count} record", done.state);

    open_session(server, None, Some(named)).await?;
    batch.sequence = Some(Some(1));
    match append_to_topic(server, topic, batch, None, None, None, None, None, None).await {
        Err(Error::ResponseError(answer)) => {
            let problem: Problem = serde_json::from_str(&answer.content)?;
            let (code, retry) = (problem.code, problem.retry);
            println!("refusal: {code}, {retry}: {}", decide(&problem));
        }
        other => return Err(format!("not refused: {other:?}").into()),
    }
    Ok(())
}
