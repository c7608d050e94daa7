//! Cursors: the positions of a read of several partitions, opaque to clients.
//!
//! A cursor is valid for its tenant and one incarnation of its topic or group: these are not in its
//! text but in its checksum. A damaged cursor, or one of another owner, does not parse. The
//! checksum is no signature (a client could compute another), so positions are validated against
//! the logs.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use xxhash_rust::xxh3::Xxh3;

use super::{GroupId, LogId, MAX_INTEGER, Offset, Partition, TenantId, TopicId, varint};

/// The version of the format. Other versions do not parse.
const VERSION: u8 = 1;
/// The version of group cursors. Version 1, which lacks runs and answers, is accepted for one more
/// release.
const GROUP_VERSION: u8 = 2;
const CHECKSUM_BYTES: usize = 4;

/// The owner of a cursor.
#[derive(Clone, Copy)]
enum Owner {
    Topic(TopicId),
    Group(GroupId),
}

/// The positions of a topic read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCursor {
    /// By partition. Partitions beyond these are new, and are read from their beginning.
    pub positions: Vec<Offset>,
    /// The partition whose turn is first.
    pub first: usize,
}

/// The positions of a group member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCursor {
    /// By log, each once.
    pub positions: Vec<Position>,
    /// The log whose turn is first.
    pub first: usize,
    /// The generation of the answer it came with, if that answer revoked partitions.
    pub told: Option<i64>,
}

/// A member's position in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub log_id: LogId,
    /// The generation in which the member got the partition.
    pub owned_since: i64,
    pub offset: Offset,
    /// The committed offset at the start of the run that ends here (`Some(None)`: nothing was
    /// committed). None: unknown, because the member sent a cursor of the old version.
    pub began: Option<Option<Offset>>,
}

impl TopicCursor {
    /// Starts at the beginning of every partition.
    pub fn start() -> Self {
        Self { positions: Vec::new(), first: 0 }
    }

    /// The position of a partition; none if the partition is new.
    pub fn position(&self, partition: Partition) -> Option<Offset> {
        self.positions.get(usize::try_from(partition).ok()?).copied()
    }

    pub fn encode(&self, tenant: TenantId, topic: TopicId) -> String {
        let mut written = Written::new(VERSION, self.first);
        let mut offset = 0;
        for position in &self.positions {
            written.step(&mut offset, *position);
        }
        written.seal(tenant, Owner::Topic(topic))
    }

    pub fn parse(text: &str, tenant: TenantId, topic: TopicId) -> Option<Self> {
        let bytes = unsealed(text, VERSION, tenant, Owner::Topic(topic))?;
        let mut rest = Rest(&bytes);
        let (first, mut offset, mut positions) = (rest.first()?, 0, Vec::new());
        while !rest.is_empty() {
            positions.push(rest.step(&mut offset)?);
        }
        is_turn(first, positions.len()).then_some(Self { positions, first })
    }
}

impl GroupCursor {
    pub fn encode(&self, tenant: TenantId, group: GroupId) -> String {
        let mut written = Written::new(GROUP_VERSION, self.first);
        written.number(self.told.map_or(0, |generation| generation as u64 + 1));
        let (mut log, mut since, mut at) = (0, 0, 0);
        for Position { log_id, owned_since, offset, began } in &self.positions {
            written.step(&mut log, log_id.0);
            written.step(&mut since, *owned_since);
            written.step(&mut at, *offset);
            written.number(match began {
                None => 0,
                Some(None) => 1,
                Some(Some(began)) => zigzag(offset - began) + 2,
            });
        }
        written.seal(tenant, Owner::Group(group))
    }

    pub fn parse(text: &str, tenant: TenantId, group: GroupId) -> Option<Self> {
        let unsealed = |version| unsealed(text, version, tenant, Owner::Group(group));
        let (bytes, has_runs) = match unsealed(GROUP_VERSION) {
            Some(bytes) => (bytes, true),
            None => (unsealed(VERSION)?, false),
        };
        let mut rest = Rest(&bytes);
        let (first, mut positions) = (rest.first()?, Vec::<Position>::new());
        let told = if has_runs { rest.told()? } else { None };
        let (mut log, mut since, mut at) = (0, 0, 0);
        while !rest.is_empty() {
            let log_id = LogId(rest.step(&mut log)?);
            let (owned_since, offset) = (rest.step(&mut since)?, rest.step(&mut at)?);
            let began = if has_runs { rest.began(offset)? } else { None };
            if positions.last().is_some_and(|last| last.log_id >= log_id) {
                return None;
            }
            positions.push(Position { log_id, owned_since, offset, began });
        }
        is_turn(first, positions.len()).then_some(Self { positions, first, told })
    }
}

fn is_turn(first: usize, count: usize) -> bool {
    first < count.max(1)
}

impl Owner {
    fn kind(self) -> u8 {
        match self {
            Owner::Topic(_) => b't',
            Owner::Group(_) => b'g',
        }
    }

    fn id(self) -> i64 {
        match self {
            Owner::Topic(TopicId(id)) | Owner::Group(GroupId(id)) => id,
        }
    }

    /// The 32-bit checksum over the owner and the contents.
    fn checksum(self, version: u8, tenant: TenantId, body: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hash = Xxh3::new();
        hash.update(&[version, self.kind()]);
        hash.update(&tenant.0.to_be_bytes());
        hash.update(&self.id().to_be_bytes());
        hash.update(body);
        (hash.digest() as u32).to_be_bytes()
    }
}

/// Zigzag encoding: the sign is the lowest bit, so that numbers near 0 are short.
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Version and kind, then numbers, then the checksum.
struct Written(Vec<u8>);

impl Written {
    fn new(version: u8, first: usize) -> Self {
        let mut written = Self(vec![version, 0]);
        written.number(first as u64);
        written
    }

    fn number(&mut self, number: u64) {
        varint::put(&mut self.0, number);
    }

    /// Encodes the difference from the previous number: neighbours are often close.
    fn step(&mut self, former: &mut i64, value: i64) {
        self.number(zigzag(value - *former));
        *former = value;
    }

    fn seal(mut self, tenant: TenantId, owner: Owner) -> String {
        self.0[1] = owner.kind();
        let checksum = owner.checksum(self.0[0], tenant, &self.0[2..]);
        self.0.extend(checksum);
        BASE64_URL_SAFE_NO_PAD.encode(self.0)
    }
}

/// The numbers of a cursor whose checksum and owner match.
fn unsealed(text: &str, version: u8, tenant: TenantId, owner: Owner) -> Option<Vec<u8>> {
    let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let checksum = bytes.split_off(bytes.len().checked_sub(CHECKSUM_BYTES)?);
    let body = bytes.strip_prefix(&[version, owner.kind()])?;
    (checksum == owner.checksum(version, tenant, body)).then(|| body.to_vec())
}

/// The bytes still to be read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn number(&mut self) -> Option<u64> {
        varint::take(&mut self.0)
    }

    fn first(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// A number from 0 to 2^53 - 1.
    fn step(&mut self, former: &mut i64) -> Option<i64> {
        let value = former.checked_add(unzigzag(self.number()?))?;
        *former = value;
        (0..=MAX_INTEGER).contains(&value).then_some(value)
    }

    fn told(&mut self) -> Option<Option<i64>> {
        match self.number()? {
            0 => Some(None),
            told => i64::try_from(told - 1).ok().filter(|told| *told <= MAX_INTEGER).map(Some),
        }
    }

    /// The start of a run, relative to the current offset.
    fn began(&mut self, offset: Offset) -> Option<Option<Option<Offset>>> {
        let number = match self.number()? {
            0 => return Some(None),
            1 => return Some(Some(None)),
            number => number - 2,
        };
        let began = offset.checked_sub(unzigzag(number))?;
        (0..=MAX_INTEGER).contains(&began).then_some(Some(Some(began)))
    }
}

#[cfg(test)]
mod tests;
