//! Chooses the partitions of a topic append: by key like Kafka's clients, and one partition per
//! request for records without a key.

use crate::model::{Offset, Partition, batch::Line, partitioner};

/// The partition of one record.
pub fn partition_of(line: &Line, partition_count: Partition, keyless: Partition) -> Partition {
    match line.key_hash {
        Some(hash) => partitioner::partition_of(hash, partition_count),
        None => keyless,
    }
}

/// (partition, offset) of every record in request order, from the first offset of each partition.
/// None if a record's partition has no base: the location is not that of these records.
pub fn offsets(
    records: &[Line],
    partition_count: Partition,
    keyless: Option<Partition>,
    bases: &[(Partition, Offset)],
) -> Option<Vec<(Partition, Offset)>> {
    let mut next: std::collections::HashMap<Partition, Offset> = bases.iter().copied().collect();
    let place = |line: &Line| {
        let partition = partition_of(line, partition_count, keyless.unwrap_or(0));
        let offset = next.get_mut(&partition)?;
        *offset += 1;
        Some((partition, *offset - 1))
    };
    records.iter().map(place).collect()
}
