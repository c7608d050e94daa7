//! An open of a producer of many logs fences them after its first transaction.

use futures_util::future::join_all;

use super::*;
use crate::support;

const PARTITIONS: i32 = 230;

/// As the first transaction of the open has left it: its replica has died then.
const DIED: &str = "update oncelog.sessions set fencing = true; \
    update oncelog.dedup_keys set answer = convert_to(regexp_replace(replace( \
        convert_from(answer, 'UTF8'), '\"is_fencing\":false', '\"is_fencing\":true'), \
        '\"next_sequences\":\\[[^]]*\\]', '\"next_sequences\":[]'), 'UTF8')";

#[tokio::test]
async fn an_open_that_died_while_it_fenced_is_brought_to_its_end_by_its_repeats() {
    let options = support::database().await;
    let replicas = [Server::on(&options, Setup::default()), Server::on(&options, Setup::default())];
    let replicas = join_all(replicas).await;
    let [a, b] = &replicas[..] else { panic!() };
    a.topic("orders", PARTITIONS).await;
    let (p, _) = a.session("p").await;
    let into = |epoch: i64, sequence: i64| {
        let append = json!({"producer_id": p, "epoch": epoch, "sequence": sequence,
            "records": [{"value": 1}]});
        join_all((0..PARTITIONS).map(move |partition| {
            let path = format!("/v1/topics/orders/partitions/{partition}/records");
            a.post(&path).json(&append).into_future()
        }))
    };
    into(0, 0).await.iter().for_each(|answer| drop(answer.ok()));
    let open = json!({"transactional_id": "p"});
    let first = a.keyed(OPEN, "k", &open).await;
    let said = first.created();
    assert_eq!((&said["epoch"], &said["duplicate"]), (&json!(1), &json!(false)));
    assert_eq!(said["next_sequences"].as_array().unwrap().len(), PARTITIONS as usize);
    is_repeat(&b.keyed(OPEN, "k", &open).await, &first);
    a.sql(DIED).await;
    let repeats = [a, b, a, b, a, b].map(|replica| replica.keyed(OPEN, "k", &open).into_future());
    for again in join_all(repeats).await {
        is_repeat(&again, &first);
    }
    let open_ends = "select count(*) from oncelog.dedup_keys \
        where convert_from(answer, 'UTF8')::json ->> 'is_fencing' = 'true'";
    assert_eq!(a.number(open_ends).await, 0);
    assert_eq!(a.number("select count(*) from oncelog.sessions where fencing").await, 0);
    into(0, 1).await.iter().for_each(|answer| drop(answer.refused(Code::ProducerFenced)));
    into(1, 1).await.iter().for_each(|answer| drop(answer.ok()));
    // and what has come since is not in the answer
    is_repeat(&b.keyed(OPEN, "k", &open).await, &first);
}
