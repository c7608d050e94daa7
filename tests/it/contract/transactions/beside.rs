//! Calls of one transaction beside its commit: what was acknowledged is committed with it, or the
//! call was refused.

use futures_util::future::join_all;
use oncelog::{
    model::{LogId, TenantId, transaction::CommitRight},
    rules::group::offsets::{Claimed, OffsetPlace},
    store::{
        self, Store,
        transaction::end::{Commit, commit},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use uuid::Uuid;

use super::{append, begun, call, committed_offset, number, see, step, until, values};
use crate::support::{self, http::Server};

const COUNTED: &str = "select id_count from oncelog.transactions where transaction_id = ";

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.topic("carts", 1).await;
    let carts = json!({"records": vec![json!({"value": "cart"}); 9]});
    server.post("/v1/topics/carts/partitions/0/records").json(carts).await.ok();
    // as when no replica of the version before runs any more
    server.sql("drop trigger count_staged_offsets on oncelog.staged_offsets").await;
    server
}

async fn left_behind(server: &Server) -> i64 {
    server.broker.sweep().await.unwrap();
    number(server, "select count(*) from oncelog.staged_offsets").await
}

/// The offset of a group in the first partition of `carts`, to be committed over none.
async fn claimed(server: &Server, group: &str, offset: i64) -> Vec<Claimed> {
    let sql = "select log_id from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
        where t.name = 'carts' and partition = 0";
    let place =
        OffsetPlace { group: support::name(group), log_id: LogId(number(server, sql).await) };
    vec![Claimed { place, offset, claim: CommitRight::Expected(None) }]
}

/// Transactions that are ongoing, and empty.
async fn ongoing(server: &Server, ids: Vec<Uuid>) {
    let sql = "insert into oncelog.transactions \
            (tenant_id, transaction_id, state, digest, created_at, expires_at) \
        select tenant_id, id, 'ongoing', decode(repeat('00', 16), 'hex'), now(), now() + interval '1 hour' \
        from oncelog.tenants, unnest($1::uuid[]) id";
    let mut connection = server.options.connect().await.unwrap();
    sqlx::query(sql).bind(ids).execute(&mut connection).await.unwrap();
}

/// A commit of one that comes behind many others, which take a while.
async fn commit_late(
    server: &Server,
    tenant: TenantId,
    first: Uuid,
    last: Uuid,
    many: u128,
) -> Vec<Uuid> {
    let of = |id: Uuid| Commit { id, session: None, expected_appends: None };
    let between = (0..many).map(|n| Uuid::from_u128(first.as_u128() + 1 + n));
    let ids = [first].into_iter().chain(between).chain([last]);
    let mut connection = Store::new(server.options.clone(), 1).connection().await.unwrap();
    let commits: Vec<Commit> = ids.map(of).collect();
    let committed = commit(&mut connection, tenant, &commits, false).await.unwrap();
    committed.rows.into_iter().map(|row| row.transaction_id).collect()
}

/// The commit has begun, so it cannot see what comes now; it comes to its transaction when the call
/// that has added offsets has let go of it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_has_begun_when_offsets_come_does_not_drop_them() {
    let server = served().await;
    let tenant = support::tenant(&server.broker).await;
    let mut connection = server.options.connect().await.unwrap();
    for attempt in 0.. {
        let first = Uuid::from_u128(u128::from(attempt as u64) << 64 | 1);
        ongoing(&server, vec![first]).await;
        let id = begun(&server, json!({"appends": [append("orders", 0, &[json!(attempt)])]})).await;
        let group = format!("late-{attempt}");
        let offsets = claimed(&server, &group, 5).await;

        let mut adding = connection.begin().await.unwrap();
        store::transaction::lock(&mut adding, tenant, &[id]).await.unwrap();
        store::transaction::staging::stage_offsets(&mut adding, tenant, id, &offsets)
            .await
            .unwrap();
        let committing = commit_late(&server, tenant, first, id, 50_000 << attempt);
        let is_at_work =
            format!("select count(*) from oncelog.transactions where transaction_id = '{first}'");
        let meanwhile = async {
            until("the commit to be at work", async || {
                let free = format!(
                    "select count(*) from (select from oncelog.transactions \
                    where transaction_id = '{first}' and ended_at is null for update skip locked) t"
                );
                (number(&server, free).await == 0).then_some(())
            })
            .await;
            adding.commit().await.unwrap();
            let ended = format!("{is_at_work} and ended_at is not null");
            number(&server, ended).await == 0
        };
        let (committed, was_at_work) = tokio::join!(committing, meanwhile);
        assert!(!committed.contains(&id), "committed without its offsets");
        call(&server, id, "commit", &json!({})).await.ok();
        let offset = format!(
            "select committed_offset from oncelog.group_offsets where group_name = '{group}'"
        );
        assert_eq!(number(&server, offset).await, 5);
        // its way was long enough
        if was_at_work {
            break;
        }
    }
    assert_eq!(left_behind(&server).await, 0);
}

/// Offsets are added to many transactions, here and there, while one statement commits them all:
/// each call comes before the commit, and is taken along, or after it, and is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_commits_beside_offsets_none_drops_any() {
    const ROUNDS: u64 = 6;
    const COMMITS: u128 = 2_000;
    const WORKERS: u64 = 6;
    const CALLS: usize = 30;
    let server = served().await;
    let tenant = support::tenant(&server.broker).await;
    let offsets = claimed(&server, "g", 5).await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut met = 0;
    for round in 0..ROUNDS {
        let id = |n: u128| Uuid::from_u128((u128::from(round) << 64) | (1 + n));
        ongoing(&server, (0..COMMITS).map(id).collect()).await;
        let commits = (0..COMMITS).map(id);
        let commits: Vec<Commit> =
            commits.map(|id| Commit { id, session: None, expected_appends: None }).collect();
        let mut connection = server.options.connect().await.unwrap();
        let committing = commit(&mut connection, tenant, &commits, false);
        let adding = (0..WORKERS).map(|worker| {
            let mut rng = StdRng::seed_from_u64(seed ^ round << 8 ^ worker);
            let (options, offsets) = (server.options.clone(), offsets.clone());
            tokio::spawn(async move {
                let mut connection = options.connect().await.unwrap();
                let mut added = 0;
                for _ in 0..CALLS {
                    let id =
                        Uuid::from_u128(u128::from(round) << 64 | rng.random_range(1..=COMMITS));
                    let mut adding = connection.begin().await.unwrap();
                    let locked = store::transaction::lock(&mut adding, tenant, &[id]).await;
                    if locked.unwrap()[0].ended_at.is_none() {
                        store::transaction::staging::stage_offsets(
                            &mut adding,
                            tenant,
                            id,
                            &offsets,
                        )
                        .await
                        .unwrap();
                        added += 1;
                    }
                    adding.commit().await.unwrap();
                }
                added
            })
        });
        let (committed, added) = tokio::join!(committing, join_all(adding));
        let added: usize = added.into_iter().map(Result::unwrap).sum();
        met += added.min(committed.unwrap().rows.len());
        let dropped = "select count(distinct transaction_id) from oncelog.staged_offsets \
            join oncelog.transactions using (tenant_id, transaction_id) where state = 'committed'";
        assert_eq!(number(&server, dropped).await, 0, "were committed without their offsets");
    }
    assert!(met > 0);
}

/// However a transaction ends, nothing of the offsets it had staged is left.
#[tokio::test]
async fn no_end_leaves_staged_offsets_behind() {
    let server = served().await;
    let (p, _) = server.session("p").await;
    let offsets = json!({"offsets": [step("carts", 0, Value::Null, 5)]});
    let mut ids = Vec::new();
    for end in ["commit", "prepare, commit", "prepare, abort", "abort", "operator", "open", "time"]
    {
        let mut begun_with = offsets.clone();
        let mut signature = json!({});
        if end == "open" {
            begun_with["producer_id"] = json!(p);
            begun_with["epoch"] = json!(0);
            signature = json!({"producer_id": p, "epoch": 0});
        }
        begun_with["offsets"][0]["group"] = json!(end.replace(", ", "-"));
        let id = begun(&server, begun_with.clone()).await;
        ids.push(id);
        let mut more = signature.clone();
        more["offsets"] = begun_with["offsets"].clone();
        more["offsets"][0]["offset"] = json!(6);
        call(&server, id, "offsets", &more).await.ok();
        assert_eq!(number(&server, format!("{COUNTED}'{id}'")).await, 2, "{end}");
        match end {
            "open" => drop(server.session("p").await),
            "time" => {
                let late = format!(
                    "update oncelog.transactions set expires_at = now() where transaction_id = '{id}'"
                );
                server.sql(late).await;
            }
            "operator" => {
                call(&server, id, "abort?as=operator", &json!({})).await.ok();
            }
            verbs => {
                for verb in verbs.split(", ") {
                    call(&server, id, verb, &json!({})).await.ok();
                }
            }
        }
        server.broker.sweep().await.unwrap();
        let ended = see(&server, id).await["state"].clone();
        assert_eq!(ended == json!("committed"), end.ends_with("commit"), "{end}: {ended}");
    }
    assert_eq!(left_behind(&server).await, 0);
}

/// What a replica of the version before does for `POST .../offsets` and for a commit.
const STAGED_BEFORE: &str = "insert into oncelog.staged_offsets as s \
        (tenant_id, transaction_id, group_name, log_id, committed_offset) \
    select t.tenant_id, t.transaction_id, 'g', l.log_id, 5 \
    from oncelog.transactions t, oncelog.logs l join oncelog.topics p using (tenant_id, topic_id) \
    where p.name = 'carts' and l.partition = 0 and t.transaction_id = ";
const COMMITTED_BEFORE: &str = "select count(*) from oncelog.transactions \
    where ended_at is null and prepared_at is null and id_count = 0 and transaction_id = ";

/// They count nothing, so it is done for them; and their commits see what this version counts.
#[tokio::test]
async fn offsets_staged_by_a_replica_of_the_version_before_are_counted_for_it() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.topic("carts", 1).await;
    let carts = json!({"records": vec![json!({"value": "cart"}); 9]});
    server.post("/v1/topics/carts/partitions/0/records").json(carts).await.ok();
    let work = json!({"appends": [append("orders", 0, &[json!("x")])]});
    let by_old = begun(&server, work.clone()).await;
    assert_eq!(number(&server, format!("{COUNTED}'{by_old}'")).await, 0);
    for _ in 0..2 {
        server
            .sql(format!(
                "{STAGED_BEFORE}'{by_old}' on conflict (tenant_id, transaction_id, \
            group_name, log_id) do update set committed_offset = 5"
            ))
            .await;
        assert_eq!(number(&server, format!("{COUNTED}'{by_old}'")).await, 1);
    }
    let by_new = begun(&server, work).await;
    assert_eq!(number(&server, format!("{COMMITTED_BEFORE}'{by_new}'")).await, 1);
    let mut moved = step("carts", 0, json!(5), 6);
    let offsets = json!({"offsets": [moved.take()]});
    call(&server, by_new, "offsets", &offsets).await.ok();
    for id in [by_old, by_new] {
        assert_eq!(number(&server, format!("{COMMITTED_BEFORE}'{id}'")).await, 0);
        call(&server, id, "commit", &json!({})).await.ok();
    }
    assert_eq!(committed_offset(&server, "carts", 0).await, Some(6));
    assert_eq!(values(&server, "orders", 0).await, [json!("x"), json!("x")]);
    assert_eq!(left_behind(&server).await, 0);
}

/// The migration counts what is staged already, and removes what commits have left behind.
#[tokio::test]
async fn what_is_staged_when_the_schema_moves_on_is_counted() {
    let options = support::empty_database().await;
    let mut connection = options.connect().await.unwrap();
    let migrate = async |connection: &mut PgConnection, wanted: fn(&str) -> bool| {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut files: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        for file in files.iter().filter(|file| wanted(file.file_name().unwrap().to_str().unwrap()))
        {
            let sql = std::fs::read_to_string(file).unwrap();
            connection.execute(AssertSqlSafe(sql)).await.unwrap();
        }
    };
    connection.execute("create schema oncelog; set search_path to oncelog").await.unwrap();
    migrate(&mut connection, |file| file < "0009").await;
    let rows = "insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at, \
            ended_at, remembered_from, appends, reason, sweeping) \
        select 1, ('00000000-0000-7000-8000-00000000000' || n)::uuid, state, '', now(), now(), ended_at, ended_at, appends, reason, sweeping \
        from (values (1, 'ongoing', null::timestamptz, null::jsonb, null, false), (2, 'ongoing', null, null, null, false), \
            (3, 'prepared', null, null, null, false), (4, 'committed', now(), '[]', null, false), \
            (5, 'aborted', now(), null, 'client', true), (6, 'aborted', now(), null, 'client', false)) \
            as t (n, state, ended_at, appends, reason, sweeping); \
        insert into oncelog.staged_offsets (tenant_id, transaction_id, group_name, log_id, committed_offset) \
        select 1, ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'g', log_id, 5 \
        from generate_series(1, 7) n, generate_series(1, n) log_id where n <> 2";
    connection.execute(rows).await.unwrap();
    migrate(&mut connection, |file| file.starts_with("0009")).await;
    let counted: Vec<i64> =
        sqlx::query_scalar("select id_count from oncelog.transactions order by transaction_id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(counted, [1, 0, 3, 0, 0, 0]);
    let left: Vec<String> = sqlx::query_scalar(
        "select distinct right(transaction_id::text, 1) from oncelog.staged_offsets order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(left, ["1", "3", "5"]);
}
