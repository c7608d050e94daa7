//! Counters and gauges with names as labels. Their series are those that were last shown and no
//! others, so they are kept beside the recorder, which forgets none.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::table::{Kind, METRICS, Metric};

/// Stands for the names of all that are not shown by name; no name has parentheses.
pub const OTHERS: &str = "(other)";

/// As `/metrics` shows them.
static SHOWN: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// From now on `/metrics` shows these series of a metric: the values of its labels, in the table's
/// order, and its own.
pub fn show_named(metric: &'static str, series: &[(Vec<&str>, f64)]) {
    if let Some(metric) = METRICS.iter().find(|row| row.name == metric) {
        let text = written(metric, series);
        SHOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(metric.name, text);
    }
}

/// What `/metrics` shows of them.
pub(super) fn shown() -> String {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).values().map(String::as_str).collect()
}

/// Names need no escaping.
fn written(metric: &Metric, series: &[(Vec<&str>, f64)]) -> String {
    let Metric { name, kind, labels, help } = metric;
    let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (values, value) in series {
        let pair = |(label, value): (&super::Label, &&str)| format!("{}=\"{value}\"", label.name);
        let pairs: Vec<String> = labels.iter().zip(values).map(pair).collect();
        text += &format!("{name}{{{}}} {value}\n", pairs.join(","));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Name,
        telemetry::{EXPIRED_PRODUCERS_TOTAL, OPEN_TRANSACTIONS},
    };

    /// Metrics that nobody else shows by name, as all tests share what is shown.
    #[test]
    fn what_is_not_measured_any_more_is_not_shown_any_more() {
        let lines = |metric: &str| -> Vec<String> {
            shown().lines().filter(|line| line.contains(metric)).map(str::to_owned).collect()
        };
        let others = (vec![OTHERS], 3.0);
        show_named(OPEN_TRANSACTIONS, &[(vec!["acme"], 7.5), others.clone()]);
        show_named(EXPIRED_PRODUCERS_TOTAL, &[(vec!["acme"], 9_007_199_254_740_992.0)]);
        let want = [
            "# TYPE oncelog_open_transactions gauge",
            "oncelog_open_transactions{state=\"acme\"} 7.5",
            "oncelog_open_transactions{state=\"(other)\"} 3",
        ];
        let shown = lines(OPEN_TRANSACTIONS);
        assert!(shown[0].starts_with("# HELP oncelog_open_transactions Transactions"));
        assert_eq!(shown[1..], want);
        let want_counter = [
            "# TYPE oncelog_expired_producers_total counter",
            "oncelog_expired_producers_total{kind=\"acme\"} 9007199254740992",
        ];
        assert_eq!(lines(EXPIRED_PRODUCERS_TOTAL)[1..], want_counter);
        show_named(OPEN_TRANSACTIONS, &[others]);
        assert_eq!(lines(OPEN_TRANSACTIONS)[1..], [want[0], want[2]]);
        assert!(Name::parse(OTHERS).is_err());
    }
}
