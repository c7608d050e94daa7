//! Which partition a key belongs to: the same as Kafka's Java client chooses.

use super::Partition;

/// Murmur2 with Kafka's seed.
pub fn key_hash(_key: &[u8]) -> u32 {
    todo!("helper C")
}

/// The partition of a key's hash among `partition_count`.
pub fn partition_of(key_hash: u32, partition_count: Partition) -> Partition {
    let positive = (key_hash & 0x7fff_ffff) as i64;
    (positive % i64::from(partition_count)) as Partition
}
