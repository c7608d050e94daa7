//! What is to be done, in words that keep their sense when others are left out: "the session of
//! name 1", "the transaction that operation 7 began", "one below the next sequence".

use serde_json::{Map, Value};

use super::call::Record;

/// Number of an operation, which it keeps.
pub type Number = usize;

#[derive(Clone, Debug)]
pub struct Op {
    pub number: Number,
    /// Which replica it goes to, of however many there are.
    pub replica: usize,
    pub act: Act,
}

/// A producer.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    Named(u8),
    /// Without a name, by that operation.
    OpenedBy(Number),
}

/// How an append is told from another.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Plain,
    /// So far from the next offset.
    Expecting(i64),
    Keyed(Number),
    /// So far from the current epoch, and from the next sequence.
    Numbered {
        who: Who,
        epoch: i64,
        sequence: i64,
    },
}

#[derive(Clone, Debug)]
pub struct ItemWish {
    pub topic: u8,
    pub partition: Option<u8>,
    pub records: Vec<Record>,
}

#[derive(Clone, Copy, Debug)]
pub enum At {
    /// So far from the committed offset.
    Committed(i64),
    /// So far before the log's end.
    BeforeEnd(i64),
}

#[derive(Clone, Copy, Debug)]
pub enum RightWish {
    Free,
    /// What is committed, or so far from it.
    Expected(i64),
    MemberOf(Number),
    /// And over what is committed, or so far from it.
    MemberOver(Number, i64),
}

#[derive(Clone, Copy, Debug)]
pub enum OffsetWish {
    At {
        group: u8,
        topic: u8,
        partition: u8,
        at: At,
        right: RightWish,
    },
    /// Of the answer to that fetch.
    CursorOf(Number),
}

#[derive(Clone, Debug, Default)]
pub struct WorkWish {
    pub appends: Vec<ItemWish>,
    pub offsets: Vec<OffsetWish>,
}

#[derive(Clone, Copy, Debug)]
pub enum Caller {
    Its,
    ItsFormer,
    Other(Who),
    Nobody,
    Operator,
}

#[derive(Clone, Debug)]
pub enum VerbWish {
    /// So far from the next sequence of the transaction.
    Records {
        sequence: Option<i64>,
        appends: Vec<ItemWish>,
    },
    Offsets(Vec<OffsetWish>),
    Prepare,
    /// So far from what it holds.
    Commit {
        expected_appends: Option<i64>,
        work: WorkWish,
    },
    Abort,
}

#[derive(Clone, Debug)]
pub enum From {
    Earliest,
    Latest,
    Offset(At),
    /// The instant of that append.
    TimeOf(Number),
    CursorOf(Number),
}

#[derive(Clone, Debug)]
pub enum Act {
    Append {
        item: ItemWish,
        form: Form,
        refuses: bool,
        as_lines: bool,
    },
    Open {
        name: Option<u8>,
        /// Of that epoch beside the current one.
        condition: Option<(Who, i64)>,
        open_id: Option<Number>,
        monotonic: bool,
        reset: bool,
        key: Option<Number>,
    },
    /// Of that epoch beside the current one, or of whatever epoch there is.
    Close(Who, Option<i64>),
    GetSession(Who),
    Begin {
        id: Option<Number>,
        key: Option<Number>,
        session: Option<(Who, i64)>,
        timeout_ms: Option<i64>,
        work: WorkWish,
        commit: bool,
    },
    Transaction {
        begun_by: Number,
        caller: Caller,
        verb: VerbWish,
    },
    GetTransaction {
        begun_by: Number,
    },
    Commit {
        group: u8,
        items: Vec<OffsetWish>,
        key: Option<Number>,
    },
    GetOffsets(u8),
    Reset {
        group: u8,
        topic: Option<u8>,
        to: Value,
        dry_run: bool,
    },
    GetGroup(u8),
    DeleteGroup(u8),
    Join {
        group: u8,
        topics: Vec<u8>,
        pattern: bool,
        instance: Option<u8>,
        reset: Option<&'static str>,
        key: Option<Number>,
    },
    Leave(Number),
    /// Showing the newest generation.
    Heartbeat {
        joined_by: Number,
        shows: bool,
    },
    Fetch {
        joined_by: Number,
        cursor_of: Option<Number>,
        run: Option<&'static str>,
        limit: Option<usize>,
        by_post: bool,
    },
    PutTopic {
        topic: u8,
        count: Option<i32>,
        settings: Option<Map<String, Value>>,
    },
    PatchTopic {
        topic: u8,
        count: Option<i32>,
        settings: Option<Map<String, Value>>,
    },
    DeleteTopic(u8),
    GetTopic(u8),
    Trim {
        topic: u8,
        partition: u8,
        before: At,
    },
    PatchTenant(Map<String, Value>),
    Read {
        topic: u8,
        partition: u8,
        from: From,
        limit: Option<usize>,
        uncommitted: bool,
        as_lines: bool,
    },
    ReadTopic {
        topic: u8,
        from: From,
        limit: Option<usize>,
        as_lines: bool,
    },
    /// The very call of that operation.
    Again(Number),
}
