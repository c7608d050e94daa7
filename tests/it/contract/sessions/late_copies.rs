//! Opens and ends of sessions that are sent again while the first is at work, or that arrive late.

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use uuid::Uuid;

use crate::support::{
    http::{Answer, Server, Setup},
    served::until,
};

async fn waiting(connection: &mut PgConnection) -> i64 {
    let sql = "select count(*) from pg_stat_activity \
        where datname = current_database() and wait_event_type = 'Lock'";
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// Sends all of these while the session's row is held; answers when it is let go of.
async fn meanwhile(server: &Server, p: i64, calls: Vec<crate::support::http::Call>) -> Vec<Answer> {
    let mut connection = server.options.connect().await.unwrap();
    let mut looking = server.options.connect().await.unwrap();
    let mut held = connection.begin().await.unwrap();
    let lock = format!("select from oncelog.sessions where producer_id = {p} for no key update");
    held.execute(AssertSqlSafe(lock)).await.unwrap();
    let many = calls.len() as i64;
    let release = async {
        until("all to wait", async || (waiting(&mut looking).await == many).then_some(())).await;
        held.commit().await.unwrap();
    };
    let calls = join_all(calls.into_iter().map(IntoFuture::into_future));
    tokio::join!(calls, release).0
}

#[tokio::test]
async fn a_repeat_of_an_open_at_work_is_answered_as_the_first() {
    for by in ["epoch", "epoch and name", "name"] {
        let here = Server::start().await;
        let there = Server::on(&here.options, Setup::default()).await;
        let (p, epoch) = here.session("p").await;
        let mut open = json!({"open_id": Uuid::now_v7()});
        if by.contains("epoch") {
            open["producer_id"] = json!(p);
            open["epoch"] = json!(epoch);
        }
        if by.contains("name") {
            open["transactional_id"] = json!("p");
        }
        let send = |server: &Server| server.post("/v1/sessions").json(&open);
        let answers = meanwhile(&here, p, vec![send(&here), send(&there), send(&there)]).await;
        let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 201], "{by}");
        for answer in answers {
            assert_eq!(answer.json()["epoch"], epoch + 1, "{by}");
        }
        assert_eq!(send(&there).await.ok()["epoch"], epoch + 1);
        // until somebody else has opened it
        here.session("p").await;
        send(&here).await.refused(Code::ProducerFenced);
    }
}

#[tokio::test]
async fn of_two_conditional_opens_at_once_one_gets_the_epoch() {
    let here = Server::start().await;
    let (p, _) = here.session("p").await;
    let open = |epoch: i64, id: Option<Uuid>| {
        let open = json!({"producer_id": p, "epoch": epoch, "open_id": id});
        here.post("/v1/sessions").json(open)
    };
    for (epoch, ids) in [(0, [Some(Uuid::now_v7()), Some(Uuid::now_v7())]), (1, [None, None])] {
        let calls = ids.map(|id| open(epoch, id));
        let answers = meanwhile(&here, p, calls.into_iter().collect()).await;
        let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409]);
        let fenced = answers.into_iter().find(|answer| answer.status == 409).unwrap();
        assert_eq!(fenced.refused(Code::ProducerFenced)["current_epoch"], epoch + 1);
    }
}

/// An open id of one session, sent with another: told so, whatever both are doing.
#[tokio::test]
async fn an_open_id_of_another_session_is_refused_without_waiting_for_it() {
    let server = Server::start().await;
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    let mut producers = Vec::new();
    for (name, id) in [("p", ids[0]), ("q", ids[1])] {
        let open = json!({"transactional_id": name, "open_id": id});
        let opened = server.post("/v1/sessions").json(open).await.created();
        producers.push(opened["producer_id"].as_i64().unwrap());
    }
    let crossed = [("p", ids[1]), ("q", ids[0])].map(|(name, id)| {
        server.post("/v1/sessions").json(json!({"transactional_id": name, "open_id": id}))
    });
    let answers = meanwhile(&server, producers[0], crossed.into_iter().take(1).collect()).await;
    for answer in answers {
        answer.refused(Code::IdempotencyKeyReused);
    }
    for (name, id) in [("p", ids[1]), ("q", ids[0])] {
        let open = json!({"transactional_id": name, "open_id": id});
        server.post("/v1/sessions").json(open).await.refused(Code::IdempotencyKeyReused);
    }
}

/// The end of a session is sent again when its next owner is at work.
#[tokio::test]
async fn a_late_copy_of_an_end_ends_nothing() {
    let here = Server::start().await;
    let there = Server::on(&here.options, Setup::default()).await;
    here.topic("t", 1).await;
    let (p, epoch) = here.session("p").await;
    let end =
        |server: &Server, epoch: i64| server.delete(&format!("/v1/sessions/{p}?epoch={epoch}"));
    let session = async || {
        let session = there.get(&format!("/v1/sessions/{p}")).await.ok();
        (session["epoch"].as_i64().unwrap(), session["closed"].as_bool().unwrap())
    };
    // an epoch that was never issued
    let refused = end(&here, epoch + 1).await.refused(Code::InvalidProducerEpoch);
    assert_eq!(refused["current_epoch"], epoch);
    assert_eq!(session().await, (epoch, false));
    // the end, and its copies before anybody opens it again
    for server in [&here, &there, &here] {
        end(server, epoch).await.no_content();
        assert_eq!(session().await, (epoch + 1, true));
    }
    end(&here, epoch + 1).await.no_content();
    assert_eq!(session().await, (epoch + 1, true));
    end(&here, epoch + 2).await.refused(Code::InvalidProducerEpoch);
    // the next owner, with a transaction; and the copies
    let (_, next) = here.session("p").await;
    assert_eq!(next, epoch + 2);
    let id = Uuid::now_v7();
    let signature = json!({"producer_id": p, "epoch": next});
    let mut body = signature.clone();
    body["transaction_id"] = json!(id);
    body["appends"] = json!([{"topic": "t", "records": [{"value": 1}]}]);
    here.post("/v1/transactions").json(&body).await.created();
    for old in epoch..next {
        end(&there, old).await.no_content();
        assert_eq!(session().await, (next, false), "{old}");
    }
    let path = format!("/v1/transactions/{id}/commit");
    let committed: Value = here.post(&path).json(&signature).await.ok();
    assert_eq!(committed["state"], "committed");
    // without an epoch any owner is meant; as is its own
    end(&here, next).await.no_content();
    assert_eq!(session().await, (next + 1, true));
    here.session("p").await;
    here.delete(&format!("/v1/sessions/{p}")).await.no_content();
    assert_eq!(session().await, (next + 3, true));
    for wrong in ["epoch=-1", "epoch=x", "epoch=", "epochs=1", "epoch=1&epoch=1"] {
        let answer = here.delete(&format!("/v1/sessions/{p}?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
    }
    here.delete(&format!("/v1/sessions/{}?epoch=0", p + 1_000))
        .await
        .refused(Code::UnknownProducer);
}

/// An end and an open at once: whichever comes second, the end harms no newer epoch.
#[tokio::test]
async fn an_end_beside_an_open_never_ends_what_was_opened() {
    let here = Server::start().await;
    let (p, _) = here.session("p").await;
    for _ in 0..10 {
        let current = here.get(&format!("/v1/sessions/{p}")).await.ok()["epoch"].as_i64().unwrap();
        let end = here.delete(&format!("/v1/sessions/{p}?epoch={current}"));
        let open = json!({"transactional_id": "p", "open_id": Uuid::now_v7()});
        let open = here.post("/v1/sessions").json(open);
        let answers = meanwhile(&here, p, vec![end, open]).await;
        assert_eq!(answers[0].status, 204);
        let opened = answers[1].json()["epoch"].as_i64().unwrap();
        let session = here.get(&format!("/v1/sessions/{p}")).await.ok();
        assert_eq!((&session["epoch"], &session["closed"]), (&json!(opened), &json!(false)));
    }
}
