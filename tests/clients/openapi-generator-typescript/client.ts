// A client from openapi-generator's `typescript-fetch`. Usage: client URL TOPIC
import {
  AppendsApi, Configuration, ErrorCode, Problem, ProblemFromJSON, ReadsApi, ResponseError, Retry,
  SessionsApi, TopicsApi, TransactionsApi,
} from "./oncelog";

const [url, topic] = process.argv.slice(2) as [string, string];
const configuration = new Configuration({ basePath: url });
const sessions = new SessionsApi(configuration);
const appends = new AppendsApi(configuration);

function decide(problem: Problem): string {
  switch (problem.retry) {
    case Retry.Same:
    case Retry.Later:
      return "send it again";
    case Retry.Reopen:
      return "open the session again";
    case Retry.Never:
      return problem.code === ErrorCode.ProducerFenced
        ? "stop: a newer session is open" : "change the request";
  }
}

async function main(): Promise<void> {
  await new TopicsApi(configuration).putTopic({ topic, putTopic: { partitionCount: 1 } });
  const named = { openSession: { transactionalId: topic } };
  const session = await sessions.openSession(named);
  console.log(`session: epoch ${session.epoch}`);

  const append = {
    producerId: session.producerId,
    epoch: session.epoch,
    sequence: 0,
    records: [{ key: "customer-7", value: { total: 12.5 } }, { valueBase64: "AAEC" }],
  };
  for (const attempt of ["append", "repeat"]) {
    const done = await appends.appendToTopic({ topic, append });
    console.log(`${attempt}: ${done.offsets?.length} records, duplicate ${done.duplicate}`);
  }

  const reads = new ReadsApi(configuration);
  const read = await reads.readPartition({ topic, partition: 0, offset: "0" });
  console.log(`read: ${read.records.length} records, total ${read.records[0]?.value.total}`);

  const done = await new TransactionsApi(configuration).beginTransaction({
    idempotencyKey: `evt-${topic}`,
    beginTransaction: { commit: true, appends: [{ topic, records: [{ value: "invoiced" }] }] },
  });
  console.log(`transaction: ${done.state}, ${done.appends?.[0]?.recordCount} record`);

  await sessions.openSession(named);
  try {
    await appends.appendToTopic({ topic, append: { ...append, sequence: 1 } });
  } catch (refused) {
    if (!(refused instanceof ResponseError)) throw refused;
    const problem = ProblemFromJSON(await refused.response.json());
    console.log(`refusal: ${problem.code}, ${problem.retry}: ${decide(problem)}`);
  }
}

void main();
