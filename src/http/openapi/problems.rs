//! Lists the problems that each operation can answer.

use crate::model::Code;

/// Problems of every operation in the tenant of a token, which its use may create.
const EVERY: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::TenantNotFound,
    Code::QuotaExceeded,
    Code::RateLimited,
    Code::Internal,
    Code::Unavailable,
    Code::Draining,
];
/// Problems of operations on all tenants.
const BY_OPERATOR: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::TenantNotFound,
    Code::Internal,
    Code::Unavailable,
    Code::Draining,
];
/// Problems of operations that answer a document and take no body.
const ANSWERING: &[Code] = &[Code::NotAcceptable];
/// Problems of operations that take a body and answer a document.
const TAKING: &[Code] =
    &[Code::NotAcceptable, Code::RequestTimeout, Code::PayloadTooLarge, Code::UnsupportedMediaType];
/// Problems of operations that write.
const WRITING: &[Code] = &[Code::OutcomeUnknown];
/// Problems of operations that take an Idempotency-Key.
const KEYED: &[Code] = &[Code::IdempotencyKeyReused, Code::IdempotencyKeyExpired];
/// Problems of operations that name a topic, a partition or a producer.
const IN_TOPIC: &[Code] = &[Code::TopicNotFound];
const IN_PARTITION: &[Code] = &[Code::TopicNotFound, Code::PartitionNotFound];
const OF_PRODUCER: &[Code] = &[Code::UnknownProducer];
/// Problems of operations in a session's epoch.
const FENCING: &[Code] = &[Code::UnknownProducer, Code::ProducerFenced, Code::InvalidProducerEpoch];
/// Problems of operations that take no token: of a server that takes none, pages of strangers are
/// refused everything.
const LOCAL: &[Code] = &[Code::Forbidden];

/// Problems of appends.
const APPENDING: &[Code] = &[
    Code::UnknownProducerState,
    Code::OutOfOrderSequence,
    Code::SequenceReused,
    Code::BatchTooLarge,
    Code::DuplicateRecord,
    Code::ConcurrentTransactions,
];
/// Problems of appends that deduplicate records by id.
const KNOWING: &[Code] = &[Code::RecordIdReused];
/// Problems of transactions that reserve the ids of their records.
const HELD: &[Code] = &[Code::ConcurrentTransactions];
/// Problems of operations that name a transaction.
const IDENTIFYING: &[Code] = &[Code::InvalidTransactionId, Code::TransactionExpired];
/// Problems of calls on an existing transaction.
const CALLING: &[Code] =
    &[Code::TransactionNotFound, Code::ProducerMismatch, Code::InvalidTransactionState];
/// Problems of appends in a transaction.
const STAGING: &[Code] =
    &[Code::TopicNotFound, Code::PartitionNotFound, Code::BatchTooLarge, Code::TransactionTooLarge];
/// Problems of naming offsets, and of committing them.
const POINTING: &[Code] =
    &[Code::InvalidCursor, Code::TopicNotFound, Code::PartitionNotFound, Code::OffsetOutOfRange];
const CLAIMING: &[Code] = &[
    Code::UnknownMember,
    Code::IllegalGeneration,
    Code::GroupNotEmpty,
    Code::OffsetCommitConflict,
];

/// Problems of calls by a group member.
const OF_MEMBER: &[Code] = &[Code::GroupNotFound, Code::UnknownMember];

/// Problems of operations that need a group without members.
const OPERATING: &[Code] = &[Code::GroupNotEmpty, Code::OffsetCommitConflict];

/// The sets of each operation; a test checks that every operation has its row.
const TABLE: &[(&str, &[&[Code]])] = &[
    ("livez", &[LOCAL]),
    ("readyz", &[LOCAL, &[Code::Draining, Code::Unavailable]]),
    ("metrics", &[LOCAL]),
    ("openapi", &[LOCAL]),
    ("docs", &[LOCAL]),
    ("docs_file", &[LOCAL, &[Code::RouteNotFound]]),
    ("docs_guide", &[LOCAL, &[Code::RouteNotFound]]),
    ("get_settings", &[EVERY, ANSWERING]),
    ("patch_settings", &[EVERY, TAKING, &[Code::PreconditionFailed], WRITING]),
    ("list_tenants", &[BY_OPERATOR, ANSWERING]),
    ("put_tenant", &[BY_OPERATOR, TAKING, WRITING]),
    ("get_tenant", &[BY_OPERATOR, ANSWERING]),
    ("patch_tenant", &[BY_OPERATOR, TAKING, &[Code::PreconditionFailed], WRITING]),
    ("delete_tenant", &[BY_OPERATOR, WRITING]),
    ("revoke_tenant_tokens", &[BY_OPERATOR, TAKING, &[Code::QuotaExceeded], WRITING]),
    ("list_tenant_revocations", &[BY_OPERATOR, ANSWERING]),
    ("remove_tenant_revocation", &[BY_OPERATOR, WRITING]),
    ("list_topics", &[EVERY, ANSWERING]),
    ("put_topic", &[EVERY, TAKING, &[Code::TopicExists], WRITING]),
    ("get_topic", &[EVERY, ANSWERING, IN_TOPIC]),
    ("patch_topic", &[EVERY, TAKING, IN_TOPIC, &[Code::TopicExists], WRITING]),
    ("delete_topic", &[EVERY, IN_TOPIC, &[Code::TopicInUse], WRITING]),
    ("trim_partition", &[EVERY, IN_PARTITION, &[Code::OffsetOutOfRange], WRITING]),
    ("open_session", &[EVERY, TAKING, FENCING, KEYED, WRITING]),
    ("list_sessions", &[EVERY, ANSWERING]),
    ("get_session", &[EVERY, ANSWERING, OF_PRODUCER]),
    ("list_session_sequences", &[EVERY, ANSWERING, OF_PRODUCER]),
    ("end_session", &[EVERY, OF_PRODUCER, &[Code::InvalidProducerEpoch], WRITING]),
    ("append_to_topic", &[EVERY, TAKING, IN_TOPIC, FENCING, APPENDING, KEYED, KNOWING, WRITING]),
    (
        "append_to_partition",
        &[
            &[Code::OffsetMismatch],
            EVERY,
            TAKING,
            IN_PARTITION,
            FENCING,
            APPENDING,
            KEYED,
            KNOWING,
            WRITING,
        ],
    ),
    ("read_partition", &[EVERY, ANSWERING, IN_PARTITION, &[Code::OffsetOutOfRange]]),
    ("read_topic", &[EVERY, ANSWERING, IN_TOPIC, &[Code::InvalidCursor, Code::OffsetOutOfRange]]),
    (
        "read_topic_by_body",
        &[EVERY, TAKING, IN_TOPIC, &[Code::InvalidCursor, Code::OffsetOutOfRange]],
    ),
    ("list_groups", &[EVERY, ANSWERING]),
    ("get_group", &[EVERY, ANSWERING, &[Code::GroupNotFound]]),
    (
        "reset_group_offsets",
        &[
            EVERY,
            TAKING,
            IN_TOPIC,
            &[Code::GroupNotFound, Code::OffsetOutOfRange],
            OPERATING,
            WRITING,
        ],
    ),
    ("delete_group", &[EVERY, &[Code::GroupNotFound], OPERATING, WRITING]),
    ("commit_group_offsets", &[EVERY, TAKING, POINTING, CLAIMING, KEYED, WRITING]),
    ("list_group_offsets", &[EVERY, ANSWERING, &[Code::GroupNotFound]]),
    ("join_group", &[EVERY, TAKING, IN_TOPIC, KEYED, WRITING]),
    ("heartbeat", &[EVERY, TAKING, OF_MEMBER, WRITING]),
    (
        "fetch_group",
        &[EVERY, ANSWERING, OF_MEMBER, &[Code::InvalidCursor, Code::OffsetOutOfRange], WRITING],
    ),
    (
        "fetch_group_by_body",
        &[EVERY, TAKING, OF_MEMBER, &[Code::InvalidCursor, Code::OffsetOutOfRange], WRITING],
    ),
    ("leave_group", &[EVERY, OF_MEMBER, WRITING]),
    (
        "begin_transaction",
        &[
            // its timeout may pass while its records are staged
            &[Code::ConcurrentTransactions, Code::TransactionReused, Code::InvalidTransactionState],
            EVERY,
            TAKING,
            FENCING,
            IDENTIFYING,
            STAGING,
            POINTING,
            CLAIMING,
            KEYED,
            KNOWING,
            WRITING,
        ],
    ),
    ("list_transactions", &[EVERY, ANSWERING]),
    ("get_transaction", &[EVERY, ANSWERING, IDENTIFYING, &[Code::TransactionNotFound]]),
    (
        "append_to_transaction",
        &[
            &[Code::OutOfOrderSequence, Code::SequenceReused],
            EVERY,
            TAKING,
            FENCING,
            IDENTIFYING,
            CALLING,
            STAGING,
            WRITING,
        ],
    ),
    (
        "add_offsets_to_transaction",
        &[
            // a cursor may be of another ownership; all else is judged when it ends
            &[Code::IllegalGeneration, Code::TransactionTooLarge],
            EVERY,
            TAKING,
            FENCING,
            IDENTIFYING,
            CALLING,
            POINTING,
            WRITING,
        ],
    ),
    (
        "prepare_transaction",
        &[EVERY, TAKING, FENCING, IDENTIFYING, CALLING, IN_TOPIC, CLAIMING, KNOWING, HELD, WRITING],
    ),
    (
        "commit_transaction",
        &[
            &[Code::AppendsMissing],
            EVERY,
            TAKING,
            FENCING,
            IDENTIFYING,
            CALLING,
            STAGING,
            POINTING,
            CLAIMING,
            KNOWING,
            HELD,
            WRITING,
        ],
    ),
    ("abort_transaction", &[EVERY, TAKING, FENCING, IDENTIFYING, CALLING, WRITING]),
];

/// The problems of an operation, ordered by status.
pub fn of(operation_id: &str) -> Option<Vec<Code>> {
    let (_, sets) = TABLE.iter().find(|(id, _)| *id == operation_id)?;
    let mut codes = sets.concat();
    codes.sort_unstable_by_key(|code| (code.status(), *code));
    codes.dedup();
    Some(codes)
}
