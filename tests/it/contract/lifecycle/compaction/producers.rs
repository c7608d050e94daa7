//! Whose requests lay in rows that compaction has taken is not forgotten.

use oncelog::{
    broker::ServiceConfig,
    model::append::{Appended, Placed, ProducerSeq, Scope},
};

use super::{World, world};
use crate::support::{self, name};

impl World {
    /// A numbered append of one record through some replica.
    async fn numbered(
        &self,
        broker: &oncelog::broker::Broker,
        numbered: ProducerSeq,
    ) -> Result<Appended, oncelog::broker::Error> {
        let tenant = support::tenant(broker).await;
        let record = format!(r#"{{"key":"k","value":{}}}"#, numbered.sequence);
        let append = support::append(Some(numbered), &record);
        broker.append(tenant, &name("t"), Scope::Partition(0), append, None).await
    }
}

fn place(appended: &Appended) -> (Option<i64>, bool) {
    let Placed::Partition { base_offset, .. } = &appended.placed else { panic!("{appended:?}") };
    (*base_offset, appended.duplicate)
}

/// Replicas that know all of the log, some of it, or nothing, decide as if nothing had gone.
#[tokio::test]
async fn sequences_go_on_and_duplicates_are_known() {
    let world = world().await;
    let settings =
        || ServiceConfig { gap_wait_ms: 0, snapshot_rows: 1_000_000, ..ServiceConfig::default() };
    let first = &world.server.broker;
    let behind = support::broker(&world.server.options, settings());
    let tenant = support::tenant(first).await;
    let opened = first.open_session(tenant, support::open(Some("p")), None).await.unwrap();
    let of = |sequence| {
        let (producer_id, epoch) = (opened.value.session.producer_id, opened.value.session.epoch);
        ProducerSeq { producer_id, epoch, sequence }
    };
    for sequence in 0..3 {
        let appended = world.numbered(&behind, of(sequence)).await.unwrap();
        assert_eq!(place(&appended), (Some(sequence), false));
    }
    // it knows three rows, and no more
    for sequence in 3..12 {
        world.numbered(first, of(sequence)).await.unwrap();
    }
    world.sweep().await;
    assert_eq!(
        world.number("select count(*) from oncelog.batches where records is not null").await,
        1
    );
    let cold = support::broker(&world.server.options, settings());
    for broker in [&behind, &cold, first] {
        for sequence in 8..12 {
            let again = world.numbered(broker, of(sequence)).await.unwrap();
            assert_eq!(place(&again), (Some(sequence), true));
        }
        assert!(world.numbered(broker, of(13)).await.is_err(), "a gap");
    }
    assert_eq!(place(&world.numbered(&behind, of(12)).await.unwrap()), (Some(12), false));
    world.sweep().await;
    let reopened = cold.open_session(tenant, support::open(Some("p")), None).await.unwrap();
    let next: Vec<i64> =
        reopened.value.next_sequences.iter().map(|next| next.next_sequence).collect();
    assert_eq!(next, [13]);
    let epoch = reopened.value.session.epoch;
    let next = ProducerSeq { epoch, ..of(13) };
    assert_eq!(place(&world.numbered(&cold, next).await.unwrap()), (Some(13), false));
    assert!(world.numbered(&behind, of(13)).await.is_err(), "fenced");
}
