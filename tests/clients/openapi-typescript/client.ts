// A client from openapi-typescript with openapi-fetch. Usage: client URL TOPIC
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Problem = components["schemas"]["Problem"];

const [url, topic] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: url });

function decide(problem: Problem): string {
  switch (problem.retry) {
    case "same":
    case "later":
      return "send it again";
    case "reopen":
      return "open the session again";
    case "never":
      return problem.code === "producer_fenced"
        ? "stop: a newer session is open" : "change the request";
  }
}

function answered<T>({ data, error }: { data?: T; error?: Problem }): T {
  if (data === undefined) throw new Error(error?.detail);
  return data;
}

const path = { topic };
const one = { partition_count: 1 };
answered(await client.PUT("/v1/topics/{topic}", { params: { path }, body: one }));
const named = { body: { transactional_id: topic } };
const session = answered(await client.POST("/v1/sessions", named));
console.log(`session: epoch ${session.epoch}`);

const batch = {
  producer_id: session.producer_id,
  epoch: session.epoch,
  sequence: 0,
  records: [{ key: "customer-7", value: { total: 12.5 } }, { value_base64: "AAEC" }],
};
for (const attempt of ["append", "repeat"]) {
  const request = { params: { path }, body: batch };
  const done = answered(await client.POST("/v1/topics/{topic}/records", request));
  console.log(`${attempt}: ${done.offsets?.length} records, duplicate ${done.duplicate}`);
}

const read = answered(await client.GET("/v1/topics/{topic}/partitions/{partition}/records", {
  params: { path: { topic, partition: 0 }, query: { offset: "0" } },
}));
const value = read.records[0]?.value as { total: number };
console.log(`read: ${read.records.length} records, total ${value.total}`);

const done = answered(await client.POST("/v1/transactions", {
  params: { header: { "Idempotency-Key": `evt-${topic}` } },
  body: { commit: true, appends: [{ topic, records: [{ value: "invoiced" }] }] },
}));
console.log(`transaction: ${done.state}, ${done.appends?.[0]?.record_count} record`);

answered(await client.POST("/v1/sessions", named));
const { error: problem } = await client.POST("/v1/topics/{topic}/records", {
  params: { path }, body: { ...batch, sequence: 1 },
});
if (problem) console.log(`refusal: ${problem.code}, ${problem.retry}: ${decide(problem)}`);
