"""Hooks of scripts/check-api: what schemathesis sends, and which failed checks are no faults."""

import atexit
import base64
import hmac
import json
import os
import re
import time
import urllib.request
import uuid
from collections import Counter

import schemathesis
from schemathesis.core.parameters import ParameterLocation

PUBLIC, ADMIN = os.environ["PUBLIC_URL"], os.environ["ADMIN_URL"]
SECRET = os.environ["ONCELOG_TOKEN_HS256_SECRET"]

# Requests that fit the document and are refused (check positive_data_acceptance): the operations,
# what the refusal says, and WHY the document does not say it. A refusal is explained if each of its
# errors is, as "STATUS CODE POINTER: DETAIL", whole. No other check and no other answer is here.
REFUSED = [
    # Rules between fields: schemas would need oneOf or if, which few generators of clients can
    # write (tests/it/documents/plain.rs holds the document to that). Descriptions say them.
    (
        "open_session",
        r"400 invalid_request /\w+: (producer_id requires epoch|epoch requires producer_id)",
        "the two fields of a conditional open go together",
    ),
    (
        ".*_transaction",
        r"400 invalid_request /\w+: missing: give producer_id and epoch together, or neither",
        "the two fields of a session go together",
    ),
    (
        "append_to_(topic|partition)",
        r"400 invalid_request [?/]\w+: missing: give producer_id, epoch and sequence together, "
        r"or none of them",
        "the three fields of a sequenced append go together",
    ),
    (
        ".*",
        r"400 invalid_request /(appends/\d+/)?records/\d+/value_base64: invalid standard "
        r"base64: .*",
        "format byte would make it another type in many clients",
    ),
    (
        "append_to_(topic|partition)|.*_transaction",
        r"400 invalid_request /(appends/\d+/)?records/\d+: (missing: give `value` or "
        r"`value_base64`|give either `value` or `value_base64`, not both)",
        "a record has exactly one of value and value_base64",
    ),
    (
        "append_to_(topic|partition)",
        r"400 invalid_request \?\w+: with an application/x-ndjson body only; in JSON it is a "
        r"field of the body",
        "a parameter cannot depend on the type of the body",
    ),
    (
        "append_to_topic",
        r"400 invalid_request [?/]expected_offset: .*append to (a|one) partition.*",
        "it is of both forms of append; without it here, generated functions would lose an argument",
    ),
    (
        "append_to_(topic|partition)",
        "400 invalid_request Idempotency-Key: the request has a sequence, .*",
        "key and sequence exclude each other",
    ),
    (
        "begin_transaction",
        r"400 invalid_request Idempotency-Key: (give it or a transaction_id, not both|taken "
        r"only with \"commit\": true; .*)",
        "the key is for one-request transactions without an id",
    ),
    (
        "(abort|commit)_transaction",
        r"400 invalid_request (/\w+: an operator .*|\?as: an operator can commit only prepared "
        r".*)",
        "?as=operator excludes what only the session may do",
    ),
    (
        ".*_transaction",
        "400 invalid_request /producer_id: missing: a session began the transaction, .*",
        "whether the session's ids are required depends on who began the transaction",
    ),
    (
        "read_.*|fetch_group.*",
        r"400 invalid_request [?/]\w+: (cursor, )?offset and timestamp exclude each other",
        "a read has one beginning",
    ),
    (
        "fetch_group.*",
        "400 invalid_request [?/]run: run=continue requires a cursor",
        "run says where a cursor's run began",
    ),
    (
        "join_group",
        "400 invalid_request /topics: missing: give topics or topic_pattern",
        "at least one of the two",
    ),
    (
        "commit_group_offsets",
        r"400 invalid_request /\S+: (offsets and cursor exclude each other|missing: give "
        r"offsets or a cursor|\w+ requires \w+|a cursor requires member_id and generation|not "
        r"allowed in a member's commit)",
        "the forms of a commit: by cursor, by member, and without one",
    ),
    (
        "reset_group_offsets",
        "400 invalid_request /to: expected exactly one of offset, timestamp and by",
        "one of the three",
    ),
    (
        "revoke_tenant_tokens",
        "400 invalid_request : expected one of: token_id; subject; issued_before; .*",
        "the forms of a revocation: of a token, of a subject, of all",
    ),
    (
        "revoke_tenant_tokens",
        "400 invalid_request /(issued_before: must be at most an hour ahead|expires_at: must be later"
        " than now)",
        "no schema knows the time",
    ),
    (
        ".*_transaction",
        r"400 invalid_request /offsets/\d+(/\w+)?: (the cursor contains it; omit it|missing.*)",
        "the three forms of an offset in a transaction",
    ),
    # Values.
    (
        "(patch|put)_(settings|topic|tenant)",
        r"400 invalid_request /\S+: \d+ is outside of \d+ to \d+",
        "one schema for the change of every setting, as plain.rs wants; ranges are in "
        "docs/settings.md",
    ),
    (
        "open_session|begin_transaction",
        r"400 invalid_request /\w+: \d+ exceeds max_transaction_timeout_ms, .*",
        "a setting of the tenant",
    ),
    (
        "join_group",
        r"400 invalid_request /session_timeout_ms: expected \d+ to \d+ .*",
        "settings of the tenant",
    ),
    (
        ".*",
        r"400 invalid_request /\S+: invalid type: floating point `-?[\d.e+]+`, expected (i32"
        r"|i64|an integer.*) at line \d+ column \d+",
        "1.0 is an integer to JSON Schema; here integers have no fraction, as in the contract",
    ),
    (
        "append_to_(topic|partition)",
        r"400 invalid_request (: the body is empty; .*|/records/\d+\S*: .*)",
        "an NDJSON body is a string to a schema: its lines are records only by luck",
    ),
    (
        "list_.*",
        r"400 invalid_request \?after: (expected a (producer|transaction) id|not a next_after "
        r"of this list)",
        "only a next_after of the list is one; what it is made of is the server's affair",
    ),
    (
        ".*transaction.*",
        "400 invalid_transaction_id .*UUIDv7.*",
        "format uuid has no version, and no schema knows the time",
    ),
    (
        ".*",
        "400 invalid_request (/open_id|Idempotency-Key): .*(UUIDv7|24 hours|hours ahead).*",
        "format uuid has no version, and no schema knows the time",
    ),
    (
        "append_to_.*|open_session|join_group|commit_group_offsets|begin_transaction",
        "400 invalid_request Idempotency-Key: .*printable.*",
        "a header's schema has no set of characters",
    ),
    # What the server has at the moment, which no document knows.
    (
        "fetch_group.*|read_topic.*|commit_group_offsets|.*_transaction",
        "400 invalid_cursor .*",
        "only the server makes cursors, each for one topic or group",
    ),
    (
        "commit_group_offsets|trim_partition|read_.*|.*_transaction|reset_group_offsets",
        "416 offset_out_of_range .*",
        "the ends of the log",
    ),
    ("patch_settings|patch_tenant", "412 precondition_failed .*", "the current ETag"),
    (".*transaction.*", "410 transaction_expired .*", "what the server remembers"),
    ("open_session", "422 idempotency_key_reused This open_id .*", "what the server remembers"),
    (
        "append_to_.*|join_group|commit_group_offsets|begin_transaction|open_session",
        "422 (idempotency_key_reused|sequence_reused|record_id_reused|transaction_reused) .*",
        "what the server remembers",
    ),
]

# Requests that do not fit the document and are taken (check negative_data_rejection): the
# operations, what is wrong with the request, and WHY it is taken.
TAKEN = [
    (
        ".*",
        r"in body - \S*(settings|maxima|auto_offset_reset|sequencing|sequences|on_duplicate"
        r"|offset|isolation|run|to): Incorrect type",
        "null is as good as absent; a schema that is a $ref cannot say so plainly "
        "(src/http/openapi/plain.rs)",
    ),
]

# What can be used after it was deleted (check use_after_free): the operations, and WHY.
LASTING = [
    ("get_tenant", ".*", "a deleted tenant is shown, with deleted_at, until its data is gone"),
]


def token(tenant):
    claims = {"aud": "oncelog", "iss": "oncelog", "exp": int(time.time()) + 3600, "tenant": tenant,
              "scope": "admin produce consume group operator"}
    text = [json.dumps(part).encode() for part in ({"alg": "HS256"}, claims)]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in text)
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), signed, "sha256"))
    return (signed + b"." + signature.rstrip(b"=")).decode()


def call(method, path, body=None, tenant="acme", base=PUBLIC):
    """A call of our own. A hook that fails here is an error of the run."""
    request = urllib.request.Request(base + path, method=method)
    request.add_header("Authorization", f"Bearer {token(tenant)}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer) | {"etag": answer.headers["ETag"]}


def join():
    body = {"topics": ["orders"], "instance_id": "check-api"}
    return call("POST", "/v1/groups/billing/members", body)


# The document's examples name these. Operations that change or delete one get another one instead,
# which the rest does without; above all, no tenant of the tokens is suspended, deleted or limited.
NAMES = {"orders": "spare", "billing": "spare", "acme": "spare", "default": "spare"}
CHANGES = re.compile("(put|patch|delete)_(topic|group|tenant)|revoke_tenant_tokens")
for topic, partitions in {"orders": 8, "audit": 4}.items():
    call("PUT", f"/v1/topics/{topic}", {"partition_count": partitions})
    for partition in range(partitions):
        records = {"records": [{"value": number} for number in range(3)]}
        call("POST", f"/v1/topics/{topic}/partitions/{partition}/records", records)

# Ids, cursors and ETags of the document's examples were valid once; they become valid ones.
EXAMPLES = {
    "AXQBBAEBAlqhJaQ": call("GET", "/v1/topics/orders/records?limit=1")["cursor"],
    "AmcCAAQCBAICAAEBAgABAQIAAgHm8GFb": call(
        "GET", f"/v1/groups/billing/members/{join()['member_id']}/records?limit=1")["cursor"],
}
ID, ETAG, KEY = "019aa5b6-5c00-7000-8000-", re.compile('"[0-9]+-[0-9a-f]{16}"'), "order-7"


def uuid7():
    bits = uuid.uuid4().int & ((1 << 62) - 1)
    return str(uuid.UUID(int=(int(time.time() * 1000) << 80) | (7 << 76) | (2 << 62) | bits))


class Live:
    """What examples become in one request."""

    def __init__(self, operation):
        self.operation, self.made = operation, {}

    def once(self, name, make):
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def producer(self):
        return self.once("producer", lambda: call("POST", "/v1/sessions", {})["producer_id"])

    def transaction(self):
        if self.operation == "begin_transaction":
            return self.once("transaction", uuid7)
        session = {"producer_id": self.producer(), "epoch": 0} if "producer" in self.made else {}
        begin = lambda: call("POST", "/v1/transactions", session)["transaction_id"]
        return self.once("transaction", begin)

    def etag(self):
        if self.operation == "patch_tenant":
            return call("PUT", "/v1/tenants/spare", {}, base=ADMIN)["etag"]
        return call("GET", "/v1/settings", tenant=patched)["etag"]

    def of(self, name, value):
        if isinstance(value, dict):
            made = {key: self.of(key, part) for key, part in value.items()}
            if str(value.get("member_id")).startswith(ID) and "generation" in made:
                made["generation"] = self.once("member", join)["generation"]
            return made
        if isinstance(value, list):
            return [self.of(name, part) for part in value]
        listed = self.operation == "list_transactions"
        if name == "producer_id" and str(value).isdigit() and (listed or str(value) == "1"):
            producer = self.producer()
            if listed:
                self.transaction()  # filters are judged by rows: without any, they are not
            return type(value)(producer)
        if name == "wait_ms" and str(value).isdigit() and 50 < int(value) <= 60_000:
            return type(value)(50)  # a wait takes time and shows nothing
        if name == "Authorization" and self.operation == "patch_settings":
            return f"Bearer {token(patched)}"  # cases are made long before they are sent
        if name == "If-Match" and ETAG.fullmatch(str(value)):
            return self.etag()
        if name == "Idempotency-Key" and value == KEY:
            return uuid7()
        if isinstance(value, str) and value.startswith(ID):
            match name:
                case "member_id":
                    return self.once("member", join)["member_id"]
                case "transaction_id":
                    return self.transaction()
                case "open_id":
                    return uuid7()
        return EXAMPLES.get(value, value) if name == "cursor" and isinstance(value, str) else value


def name_of(operation):
    return operation.definition.raw["operationId"]


# The tenant whose settings are changed. It is another one after each change: limits that a tenant
# gave itself would end the run in 429.
patched = f"patched-{uuid7()}"
call("GET", "/v1/topics", tenant=patched)


@schemathesis.auth()
class Tokens:
    def get(self, case, context):
        return token("acme")

    def set(self, case, made, context):
        case.headers["Authorization"] = f"Bearer {made}"


@schemathesis.hook
def after_call(context, case, response):
    global patched
    if name_of(case.operation) == "patch_settings" and response.status_code == 200:
        patched = f"patched-{uuid7()}"
        call("GET", "/v1/topics", tenant=patched)


@schemathesis.hook
def before_init_operation(context, operation):
    if operation.path.startswith("/v1/tenants") or operation.path == "/metrics":
        operation.base_url = ADMIN


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = name_of(case.operation)
    live = Live(operation)
    # the producer of the body is the one that begins the transaction of the path
    for part in ("body", "query", "path_parameters"):
        value = getattr(case, part)
        if isinstance(value, dict | list) and (made := live.of("", value)) != value:
            setattr(case, part, made)
    # a header that is left out on purpose would come back
    if not (case.meta and case.meta.is_negative_at(ParameterLocation.HEADER)):
        for name, value in list((case.headers or {}).items()):
            if (made := live.of(name, value)) != value:
                case.headers[name] = made
    if CHANGES.fullmatch(operation):
        path = case.path_parameters
        for name, value in path.items():
            path[name] = NAMES.get(value, value) if isinstance(value, str) else value
        if operation == "patch_tenant" and "If-Match" in (case.headers or {}):
            path["tenant"] = "spare"
        if operation == "delete_tenant" and path.get("tenant") == "spare":
            path["tenant"] = f"spare-{uuid7()}"  # who deletes a tenant cannot make it again at once
            call("PUT", f"/v1/tenants/{path['tenant']}", {}, base=ADMIN)


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def sayings(failure, response):
    if type(failure).__name__ != "RejectedPositiveData":
        return [failure.message.split("Invalid component: ")[-1]]
    try:
        problem = response.json()
        errors = [f"{error['pointer']}: {error['detail']}" for error in problem.get("errors", [])]
        head = f"{problem['status']} {problem['code']}"
        return [f"{head} {said}" for said in errors or [problem["detail"]]]
    except (ValueError, KeyError):
        return [f"{response.status_code} without a problem"]


met = Counter()


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Whether a failure stays: one that is explained does not."""
    kind = type(failure).__name__
    lists = {"RejectedPositiveData": REFUSED, "AcceptedNegativeData": TAKEN}
    explanations = (lists | {"UseAfterFree": LASTING}).get(kind, [])
    found = []
    for said in sayings(failure, response):
        for operations, says, why in explanations:
            if re.fullmatch(operations, name_of(case.operation)) and re.fullmatch(says, said, re.S):
                found.append((operations, says, why))
                break
        else:
            return True
    met.update(found)
    return False


@atexit.register
def tell():
    print(f"\n{sum(met.values())} failed checks are explained in scripts/check-api.py:")
    for explanation, times in met.most_common():
        print(f"{times:6} {explanation[2]}")
    never = [why for *rest, why in REFUSED + TAKEN + LASTING if (*rest, why) not in met]
    if never:
        print("Not met with this seed: " + "; ".join(never))
