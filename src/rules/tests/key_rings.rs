use crate::{
    model::{Timestamp, dedup::Ring},
    rules::{key_rings::RingRow, tests::text::rows},
};

/// Instants in milliseconds; `null`: no period.
#[test]
fn a_ring_turns_when_its_period_is_over() {
    let table = "
        ring 0 at 0   | period 100  | turned 1000 now 1000 -> stays
        ring 0 at 0   | period 100  | turned 1000 now 1100 -> stays
        ring 0 at 0   | period 100  | turned 1000 now 1101 -> 1
        ring 0 at 1   | period 100  | turned 1000 now 1101 -> 2
        ring 0 at 2   | period 100  | turned 1000 now 1101 -> 0
        ring 4 at 12  | period 100  | turned 1000 now 9999 -> 13
        ring 4 at 14  | period 100  | turned 1000 now 9999 -> 12
        ring 0 at 0   | period 100  | turned 1000 now 500  -> stays
        ring 0 at 0   | period 100  | turned 1000 now 0    -> stays
        ring 5 at 15  | period 9223372036854775807 | turned 1000 now 9999 -> stays
        ring 6 at 18  | period null | turned 0    now 9999 -> stays";
    for line in rows(table) {
        let (given, want) = line.split_once("->").unwrap();
        let words: Vec<&str> = given.split_whitespace().filter(|word| *word != "|").collect();
        let [_, ring, _, slot, _, period, _, turned, _, now] = words[..] else { panic!("{line}") };
        let number = |text: &str| text.parse::<i64>().unwrap();
        let row = RingRow {
            ring: Ring(ring.parse().unwrap()),
            period_ms: (period != "null").then(|| number(period)),
            slot: slot.parse().unwrap(),
            turned_at: Timestamp(number(turned)),
        };
        let turn = row.turn(Timestamp(number(now)));
        assert_eq!(turn.map_or("stays".into(), |slot| slot.to_string()), want.trim(), "{line}");
    }
}

/// However the clock jumps, and however late a key is stored after a rotation: it is kept until it
/// has expired by the clock, or has reached its maximum lifetime.
#[test]
fn no_key_is_emptied_before_its_time() {
    const PERIOD_MS: i64 = 10;
    let mut emptied = 0;
    for (jumped_at, jump) in (1..60).flat_map(|at| (-40..40).map(move |jump| (at, jump))) {
        let start = Timestamp(0);
        let mut row =
            RingRow { ring: Ring(0), period_ms: Some(PERIOD_MS), slot: 0, turned_at: start };
        let mut before = row.slot;
        // (partition, when by the clock, when in truth)
        let mut keys: Vec<(i16, i64, i64)> = Vec::new();
        for truth in 1..200_i64 {
            let now = Timestamp(truth + if truth < jumped_at { 0 } else { jump });
            // a claimer may have looked before the last turn
            keys.extend([before, row.slot].map(|slot| (slot, now.0, truth)));
            let Some(slot) = row.turn(now) else { continue };
            for (_, at, claimed) in keys.extract_if(.., |(of, ..)| *of == slot) {
                let (expired, lived) = (at + PERIOD_MS < now.0, truth - claimed >= PERIOD_MS);
                assert!(expired || lived, "{jump} at {jumped_at}: of {at}, emptied at {}", now.0);
                emptied += 1;
            }
            before = row.slot;
            row = RingRow { slot, turned_at: now, ..row };
        }
    }
    assert!(emptied > 100_000, "{emptied}");
}
