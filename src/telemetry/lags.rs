//! The lag of groups: the one metric with names as labels. Its series are those of the last
//! measurement and no others, so it is kept beside the recorder, which forgets none.

use std::sync::{Mutex, PoisonError};

use super::table::{CONSUMER_LAG_RECORDS, METRICS};
use crate::model::group_view::Lag;

/// Stands for the names of all that are not shown by name; no name has parentheses.
pub const OTHERS: &str = "(other)";

/// As `/metrics` shows it; empty: it is not measured.
static SHOWN: Mutex<String> = Mutex::new(String::new());

/// From now on `/metrics` shows these, and the sum of all others.
pub fn show_lags(lags: &[Lag], others: i64) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = written(lags, others);
}

/// What `/metrics` shows of lags.
pub(super) fn shown() -> String {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Names need no escaping.
fn written(lags: &[Lag], others: i64) -> String {
    let name = CONSUMER_LAG_RECORDS;
    let metric = METRICS.iter().find(|metric| metric.name == name);
    let help = metric.map_or("", |metric| metric.help);
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
    let mut line = |tenant: &str, group: &str, topic: &str, records: i64| {
        text += &format!(
            "{name}{{tenant=\"{tenant}\",group=\"{group}\",topic=\"{topic}\"}} {records}\n"
        );
    };
    for Lag { tenant, group, topic, records } in lags {
        line(tenant.as_str(), group.as_str(), topic.as_str(), *records);
    }
    line(OTHERS, OTHERS, OTHERS, others);
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Name;

    #[test]
    fn what_is_not_measured_any_more_is_not_shown_any_more() {
        let name = |text| Name::parse(text).unwrap();
        let lag = |group, records| Lag {
            tenant: name("acme"),
            group: name(group),
            topic: name("orders"),
            records,
        };
        let head = "# HELP oncelog_consumer_lag_records Records";
        let text = written(&[lag("billing", 7), lag("mail", 0)], 3);
        assert!(text.starts_with(head), "{text}");
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let want = [
            "# TYPE oncelog_consumer_lag_records gauge",
            "oncelog_consumer_lag_records{tenant=\"acme\",group=\"billing\",topic=\"orders\"} 7",
            "oncelog_consumer_lag_records{tenant=\"acme\",group=\"mail\",topic=\"orders\"} 0",
            "oncelog_consumer_lag_records{tenant=\"(other)\",group=\"(other)\",topic=\"(other)\"} 3",
            "",
        ];
        assert_eq!(lines, want);
        let text = written(&[], 0);
        assert_eq!(text.lines().filter(|line| line.starts_with("oncelog")).count(), 1, "{text}");
        assert!(Name::parse(OTHERS).is_err());
    }
}
