//! Maps a key to a partition, like Kafka's Java client.

use super::Partition;

const SEED: u32 = 0x9747_b28c;
const MIX: u32 = 0x5bd1_e995;
const SHIFT: u32 = 24;

/// Murmur2 with Kafka's seed (`org.apache.kafka.common.utils.Utils.murmur2`).
pub fn key_hash(key: &[u8]) -> u32 {
    let (blocks, tail) = key.as_chunks::<4>();
    // Java's lengths are 32 bits wide.
    let mut hash = SEED ^ key.len() as u32;
    for block in blocks {
        let mut k = u32::from_le_bytes(*block).wrapping_mul(MIX);
        k ^= k >> SHIFT;
        hash = hash.wrapping_mul(MIX) ^ k.wrapping_mul(MIX);
    }
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(MIX);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MIX);
    hash ^ (hash >> 15)
}

/// The partition of a key's hash among `partition_count`.
pub fn partition_of(key_hash: u32, partition_count: Partition) -> Partition {
    let positive = (key_hash & 0x7fff_ffff) as Partition;
    positive % partition_count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by Kafka's own client: see `tests/vectors/KafkaVectors.java`.
    const VECTORS: &str = include_str!("../../tests/vectors/kafka_partitions.ndjson");
    const COUNTS: [Partition; 6] = [1, 2, 3, 12, 16, 1000];

    #[derive(serde::Deserialize)]
    struct Row {
        key: String,
        murmur2: i32,
        partitions: [Partition; 6],
    }

    #[test]
    fn hashes_and_partitions_are_those_of_kafkas_java_client() {
        let rows = VECTORS.lines().map(|line| serde_json::from_str::<Row>(line).unwrap());
        let mut seen = 0;
        for row in rows {
            let hash = key_hash(row.key.as_bytes());
            assert_eq!(hash as i32, row.murmur2, "{:?}", row.key);
            assert_eq!(
                COUNTS.map(|count| partition_of(hash, count)),
                row.partitions,
                "{:?}",
                row.key
            );
            seen += 1;
        }
        assert!(seen >= 300, "{seen} rows");
    }
}
