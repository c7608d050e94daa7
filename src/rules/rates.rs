//! The rates of a tenant, as token buckets that hold two seconds' worth each. A request is let in
//! while all of them are above zero, and may take them below it, so that none is too large.

use std::time::Duration;

use super::{Refusal, settings::in_force};
use crate::model::settings::{
    OwnSettings,
    rates::{Metered, RateState, WINDOW_S},
};

/// The rates of a tenant, in the order of `Metered::ALL`; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates([Option<i64>; 3]);

impl Rates {
    pub fn of(settings: &OwnSettings) -> Self {
        Self(Metered::ALL.map(|metered| in_force(metered.key(), &[settings]).number()))
    }

    pub fn has_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

/// What is left of each rate; none: nothing was taken since the rate was set, and it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Buckets {
    left: [Option<f64>; 3],
    /// Since the same instant as every `now`.
    as_of: Duration,
}

impl Buckets {
    /// Adds what has come in since. `now` is since an instant that stays the same.
    pub fn refill(&mut self, rates: &Rates, now: Duration) {
        let seconds = now.saturating_sub(self.as_of).as_secs_f64();
        self.as_of = self.as_of.max(now);
        for (left, rate) in self.left.iter_mut().zip(rates.0) {
            *left = rate.map(|rate| {
                let full = (rate * WINDOW_S) as f64;
                left.map_or(full, |left| (left + seconds * rate as f64).min(full))
            });
        }
    }

    /// Takes a request, or says which rate keeps it out, and for how many seconds.
    pub fn admit(&mut self, rates: &Rates) -> Result<(), Refusal> {
        for ((left, rate), metered) in self.left.iter().zip(rates.0).zip(Metered::ALL) {
            if let (Some(left), Some(limit)) = (left, rate)
                && *left <= 0.0
            {
                let retry_after_s = (-left / limit as f64) as u64 + 1;
                return Err(Refusal::RateLimited { key: metered.key(), limit, retry_after_s });
            }
        }
        self.take(Metered::Requests, 1);
        Ok(())
    }

    pub fn take(&mut self, metered: Metered, count: u64) {
        if let Some(left) = &mut self.left[metered as usize] {
            *left -= count as f64;
        }
    }

    /// The state of each rate that is limited.
    pub fn states(&self, rates: &Rates) -> impl Iterator<Item = RateState> {
        let each = self.left.into_iter().zip(rates.0).zip(Metered::ALL);
        each.filter_map(|((left, rate), metered)| {
            let (rate, left) = (rate?, left?);
            let quota = rate * WINDOW_S;
            let full_in_s = ((quota as f64 - left) / rate as f64).ceil() as i64;
            Some(RateState { metered, quota, left: left.max(0.0) as i64, full_in_s })
        })
    }
}
