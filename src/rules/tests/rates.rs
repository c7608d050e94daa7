//! Rates: who is let in, when, and what is said of it.

use std::time::Duration;

use super::settings::own;
use crate::{
    model::settings::{
        Key,
        rates::{Metered, RateState},
    },
    rules::{
        Refusal,
        rates::{Buckets, Rates},
    },
};

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sends requests at these milliseconds; returns when they are let in, or after how many seconds
/// they should come back.
fn sent(settings: &str, at_ms: &[u64], bytes_out: u64) -> Vec<Result<(), u64>> {
    let rates = Rates::of(&own(settings));
    let mut buckets = Buckets::default();
    let send = |ms: &u64| {
        buckets.refill(&rates, at(*ms));
        let admitted = buckets.admit(&rates);
        if admitted.is_ok() {
            buckets.take(Metered::BytesOut, bytes_out);
        }
        admitted.map_err(|refusal| match refusal {
            Refusal::RateLimited { retry_after_s, .. } => retry_after_s,
            other => panic!("{other}"),
        })
    };
    at_ms.iter().map(send).collect()
}

#[test]
fn two_seconds_worth_may_come_at_once() {
    type Row = (&'static str, &'static [u64], u64, &'static [Result<(), u64>]);
    let table: [Row; 6] = [
        ("", &[0, 0, 0], 1 << 40, &[Ok(()); 3]),
        ("max_requests_per_s=1", &[0, 0, 0, 999], 0, &[Ok(()), Ok(()), Err(1), Ok(())]),
        // what is above zero lets a whole one in, which the next has to wait for
        (
            "max_requests_per_s=1",
            &[0, 0, 1, 2, 1_000, 1_001],
            0,
            &[Ok(()), Ok(()), Ok(()), Err(1), Err(1), Ok(())],
        ),
        // never more than two seconds' worth, however long nothing came
        (
            "max_requests_per_s=1",
            &[0, 90_000, 90_000, 90_000],
            0,
            &[Ok(()), Ok(()), Ok(()), Err(1)],
        ),
        // one answer of 10 seconds' worth
        (
            "max_bytes_out_per_s=100",
            &[0, 0, 7_999, 8_001],
            1_000,
            &[Ok(()), Err(9), Err(1), Ok(())],
        ),
        // time that goes back is no time
        ("max_requests_per_s=1", &[5_000, 5_000, 0, 5_000], 0, &[Ok(()), Ok(()), Err(1), Err(1)]),
    ];
    for (settings, at_ms, bytes_out, want) in table {
        assert_eq!(sent(settings, at_ms, bytes_out), want, "{settings} {at_ms:?}");
    }
}

/// However much was taken.
#[test]
fn who_waits_as_long_as_said_is_let_in() {
    for (rate, taken) in [(1, 3), (3, 7), (7, 14), (1_000, 123_456), (1_000_000_000_000, 1 << 50)] {
        let rates = Rates::of(&own(&format!("max_bytes_in_per_s={rate}")));
        let mut buckets = Buckets::default();
        buckets.refill(&rates, at(0));
        buckets.take(Metered::BytesIn, taken);
        let Err(Refusal::RateLimited { key, limit, retry_after_s }) = buckets.admit(&rates) else {
            assert!(taken < 2 * rate, "{rate} {taken}");
            continue;
        };
        assert_eq!((key, limit), (Key::MaxBytesInPerS, rate as i64));
        let mut late = buckets;
        late.refill(&rates, at(retry_after_s * 1_000));
        assert_eq!(late.admit(&rates), Ok(()), "{rate} {taken}");
        // and a second earlier he would have come in vain
        let mut early = buckets;
        early.refill(&rates, at((retry_after_s - 1) * 1_000));
        assert!(early.admit(&rates).is_err(), "{rate} {taken}");
    }
}

#[test]
fn each_limited_rate_has_a_state() {
    let settings = own("max_requests_per_s=10 max_bytes_out_per_s=1000");
    let rates = Rates::of(&settings);
    assert!(rates.has_any() && !Rates::of(&own("max_topics=1")).has_any());
    let mut buckets = Buckets::default();
    buckets.refill(&rates, at(0));
    buckets.admit(&rates).unwrap();
    buckets.take(Metered::BytesOut, 4_500);
    buckets.take(Metered::BytesIn, 1 << 40);
    let state = |metered, quota, left, full_in_s| RateState { metered, quota, left, full_in_s };
    let states: Vec<RateState> = buckets.states(&rates).collect();
    assert_eq!(
        states,
        [state(Metered::Requests, 20, 19, 1), state(Metered::BytesOut, 2_000, 0, 5)]
    );
    // a rate that is set later begins full; one that is lowered holds no more than it may
    let rates = Rates::of(&own("max_requests_per_s=1 max_bytes_in_per_s=5"));
    buckets.refill(&rates, at(0));
    let states: Vec<RateState> = buckets.states(&rates).collect();
    assert_eq!(states, [state(Metered::Requests, 2, 2, 0), state(Metered::BytesIn, 10, 10, 0)]);
}
