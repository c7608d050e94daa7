"""A client from openapi-generator's `python`. Usage: client.py URL TOPIC"""
import sys

import oncelog
from oncelog import ErrorCode, Retry

url, topic = sys.argv[1:]
api = oncelog.ApiClient(oncelog.Configuration(host=url))
topics, sessions = oncelog.TopicsApi(api), oncelog.SessionsApi(api)
appends, reads = oncelog.AppendsApi(api), oncelog.ReadsApi(api)
transactions = oncelog.TransactionsApi(api)


def decide(problem: oncelog.Problem) -> str:
    match problem.retry:
        case Retry.SAME | Retry.LATER:
            return "send it again"
        case Retry.REOPEN:
            return "open the session again"
        case Retry.NEVER if problem.code == ErrorCode.PRODUCER_FENCED:
            return "stop: a newer session is open"
        case _:
            return "change the request"


topics.put_topic(topic, oncelog.PutTopic(partition_count=1))
session = sessions.open_session(open_session=oncelog.OpenSession(transactional_id=topic))
print("session: epoch", session.epoch)

batch = oncelog.Append(
    producer_id=session.producer_id,
    epoch=session.epoch,
    sequence=0,
    records=[
        oncelog.Record(key="customer-7", value={"total": 12.5}),
        oncelog.Record(value_base64="AAEC"),
    ],
)
for attempt in ("append", "repeat"):
    done = appends.append_to_topic(topic, batch)
    print(f"{attempt}: {len(done.offsets)} records, duplicate {str(done.duplicate).lower()}")

read = reads.read_partition(topic, 0, offset="0")
print(f"read: {len(read.records)} records, total {read.records[0].value['total']}")

begin = oncelog.BeginTransaction(
    commit=True,
    appends=[oncelog.TransactionAppend(topic=topic, records=[oncelog.Record(value="invoiced")])],
)
done = transactions.begin_transaction(f"evt-{topic}", begin)
print(f"transaction: {done.state.value}, {done.appends[0].record_count} record")

sessions.open_session(open_session=oncelog.OpenSession(transactional_id=topic))
try:
    appends.append_to_topic(topic, batch.model_copy(update={"sequence": 1}))
except oncelog.ApiException as refused:
    problem = refused.data
    print(f"refusal: {problem.code.value}, {problem.retry.value}: {decide(problem)}")
