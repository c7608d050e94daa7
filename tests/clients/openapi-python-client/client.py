"""A client from openapi-python-client. Usage: client.py URL TOPIC"""
import sys

from oncelog_client import Client
from oncelog_client.api.appends import append_to_topic
from oncelog_client.api.reads import read_partition
from oncelog_client.api.sessions import open_session
from oncelog_client.api.topics import put_topic
from oncelog_client.api.transactions import begin_transaction
from oncelog_client.models import (
    Append,
    BeginTransaction,
    ErrorCode,
    OpenSession,
    Problem,
    PutTopic,
    Record,
    Retry,
    TransactionAppend,
)

url, topic = sys.argv[1:]
client = Client(base_url=url)


def decide(problem: Problem) -> str:
    match problem.retry:
        case Retry.SAME | Retry.LATER:
            return "send it again"
        case Retry.REOPEN:
            return "open the session again"
        case Retry.NEVER if problem.code == ErrorCode.PRODUCER_FENCED:
            return "stop: a newer session is open"
        case _:
            return "change the request"


def answered(answer):
    assert not isinstance(answer, Problem), answer
    return answer


answered(put_topic.sync(topic, client=client, body=PutTopic(partition_count=1)))
named = OpenSession(transactional_id=topic)
session = answered(open_session.sync(client=client, body=named))
print("session: epoch", session.epoch)

batch = Append(
    producer_id=session.producer_id,
    epoch=session.epoch,
    sequence=0,
    records=[Record(key="customer-7", value={"total": 12.5}), Record(value_base64="AAEC")],
)
for attempt in ("append", "repeat"):
    done = answered(append_to_topic.sync(topic, client=client, body=batch))
    print(f"{attempt}: {len(done.offsets)} records, duplicate {str(done.duplicate).lower()}")

read = answered(read_partition.sync(topic, 0, client=client, offset="0"))
print(f"read: {len(read.records)} records, total {read.records[0].value['total']}")

begin = BeginTransaction(
    commit=True, appends=[TransactionAppend(topic=topic, records=[Record(value="invoiced")])]
)
once = f"evt-{topic}"
done = answered(begin_transaction.sync(client=client, body=begin, idempotency_key=once))
print(f"transaction: {done.state}, {done.appends[0].record_count} record")

answered(open_session.sync(client=client, body=named))
batch.sequence = 1
problem = append_to_topic.sync(topic, client=client, body=batch)
if isinstance(problem, Problem):
    print(f"refusal: {problem.code}, {problem.retry}: {decide(problem)}")
