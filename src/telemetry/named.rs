//! Gauges with names as labels. Their series are those that were last shown and no others, so they
//! are kept beside the recorder, which forgets none.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::table::{METRICS, Metric};

/// Stands for the names of all that are not shown by name; no name has parentheses.
pub const OTHERS: &str = "(other)";

/// As `/metrics` shows them.
static SHOWN: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// From now on `/metrics` shows these series of a metric: the values of its labels, in the table's
/// order, and its own.
pub fn show_named(metric: &'static str, series: &[(Vec<&str>, i64)]) {
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
fn written(Metric { name, labels, help, .. }: &Metric, series: &[(Vec<&str>, i64)]) -> String {
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
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
    use crate::{model::Name, telemetry::CONSUMER_LAG_RECORDS};

    #[test]
    fn what_is_not_measured_any_more_is_not_shown_any_more() {
        let lines = || -> Vec<String> { shown().lines().map(str::to_owned).collect() };
        let others = (vec![OTHERS, OTHERS, OTHERS], 3);
        show_named(CONSUMER_LAG_RECORDS, &[(vec!["acme", "billing", "orders"], 7), others.clone()]);
        assert!(lines()[0].starts_with("# HELP oncelog_consumer_lag_records Records"));
        let want = [
            "# TYPE oncelog_consumer_lag_records gauge",
            "oncelog_consumer_lag_records{tenant=\"acme\",group=\"billing\",topic=\"orders\"} 7",
            "oncelog_consumer_lag_records{tenant=\"(other)\",group=\"(other)\",topic=\"(other)\"} 3",
            "",
        ];
        assert_eq!(lines()[1..], want);
        show_named(CONSUMER_LAG_RECORDS, &[others]);
        assert_eq!(lines()[1..], [want[0], want[2], want[3]]);
        assert!(Name::parse(OTHERS).is_err());
    }
}
