//! Partitions of several topics.

use std::collections::{BTreeMap, BTreeSet};

/// A topic and a partition.
pub type Partition = (String, i32);

/// `carts 0; orders 0, 1, 2`.
pub fn list_by_topic(partitions: &BTreeSet<Partition>) -> String {
    let mut topics: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (topic, partition) in partitions {
        topics.entry(topic).or_default().push(partition.to_string());
    }
    let topics = topics.iter().map(|(topic, numbers)| format!("{topic} {}", numbers.join(", ")));
    topics.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_listed_by_topic() {
        let list = |partitions: &[(&str, i32)]| {
            let owned = partitions.iter().map(|(topic, number)| ((*topic).to_owned(), *number));
            list_by_topic(&owned.collect())
        };
        assert_eq!(list(&[("orders", 0)]), "orders 0");
        assert_eq!(list(&[("o", 10), ("o", 2), ("carts", 0)]), "carts 0; o 2, 10");
    }
}
