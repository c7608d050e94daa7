// One request in, one transaction out, exactly once: a function as serverless platforms run them.
//
//     oncelog topic create orders --partitions 4 && oncelog topic create audit
//     node examples/function.ts   # before Node 22.18: npx tsx examples/function.ts
//     curl 127.0.0.1:8000 -d '{"id": "evt_1", "customer": "customer-7", "total": 12.5}'
//
// The event's id, in whatever form its sender makes them, is the Idempotency-Key of the transaction. So the
// event is recorded once, however often and wherever it is delivered, and nothing is kept in between. Where
// it is not certain that it was recorded the answer is 503, and the sender delivers it again.
import { createServer } from "node:http";
import { json } from "node:stream/consumers";

const { ONCELOG_URL: url = "http://127.0.0.1:8080", ONCELOG_TOKEN: token = "", PORT = "8000" } = process.env;
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };

/** A status and an answer. What is appended follows from the event alone: a repeat is the same. */
async function handle(event: { id?: string; customer?: string }): Promise<[number, unknown]> {
  const key = encodeURIComponent(event.id ?? ""); // headers are ASCII
  const transaction = {
    appends: [
      { topic: "orders", records: [{ key: event.customer, value: event }] },
      { topic: "audit", records: [{ value: { ordered: event.id } }] },
    ],
    commit: true,
  };
  try {
    const answer = await fetch(`${url}/v1/transactions`, {
      method: "POST",
      headers: { ...headers, "Idempotency-Key": key },
      body: JSON.stringify(transaction),
      signal: AbortSignal.timeout(20_000),
    });
    const content = await answer.json();
    if (answer.ok || [400, 410, 413, 422].includes(answer.status)) return [answer.status, content]; // the event is to blame
  } catch {} // nobody knows what was done
  return [503, { detail: "It is not certain that this was recorded. Deliver it again." }];
}

createServer(async (request, response) => {
  let status = 400, answer: unknown = { detail: "Expected a JSON object, with an id." };
  try {
    [status, answer] = await handle(await json(request) as object);
  } catch {} // no JSON, or not all of it
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
}).listen(Number(PORT), "127.0.0.1");
