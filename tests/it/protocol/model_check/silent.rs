//! Numbers that are used by requests of which nothing is stored, as all of it is known.

use oncelog::rules::append::{encoding, plan::Plan, producer_state::Entry};

use super::{
    Rule, Seen,
    ledger::{Row, StateRow},
    world::Turn,
};

impl Turn<'_> {
    /// Numbers that no row shows: their producers' states do, and the history.
    pub fn write_silent(&mut self, replica: usize, plan: &Plan) {
        let clock = self.world.ledger.clock;
        let states: Vec<_> = plan.silent_states(self.caches(replica), clock).collect();
        for (log_id, id, as_of_offset, state) in states {
            self.note(Seen::Silent);
            let last = state.recent.back().unwrap();
            let entry = Entry {
                producer_id: id,
                epoch: state.epoch,
                sequence: last.sequence,
                fresh: state.recent.len() == 1,
                digest: last.digest,
                placement: last.placement.clone(),
            };
            let producers = Some(encoding::encode_entries(as_of_offset, &[entry]));
            let row = Row {
                base_offset: as_of_offset,
                record_count: 0,
                appended_at: clock,
                producers,
                payloads: Vec::new(),
            };
            let raises = !self.is_without(Rule::FenceSilent);
            self.world.ledger.states.insert((log_id, id), StateRow::of(&state, as_of_offset));
            let log = self.world.ledger.log_mut(log_id);
            log.head.fence += i64::from(raises);
            log.rows.push(row);
            let before = log.rows.len() - 1;
            self.check_stored(log_id, before);
        }
    }
}
