// Consume, transform, produce, exactly once, in as many workers as you like.
//
//     oncelog topic create orders --partitions 4 && oncelog topic create invoices --partitions 4
//     node examples/worker.ts orders invoices billing [instance-id]   # before Node 22.18: npx tsx ...
//
// What was made of some records, and how far they were read, are one transaction: whoever is killed,
// each record has been processed once, or not yet. A worker that is back within its lease with its
// instance id keeps its partitions; one without leaves when it is stopped, and others take over.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

type Entry = { key?: string; value?: unknown };
type Answer = { member_id: string; generation: number; records?: Entry[]; cursor: string; code?: string; detail?: string };

const { ONCELOG_URL: url = "http://127.0.0.1:8080", ONCELOG_TOKEN: token = "" } = process.env;
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
const [source, target, group, instance_id] = process.argv.slice(2);
const members = `${url}/v1/groups/${group}/members`;
let member = "", cursor = "", stopped = false;

const transform = ({ key, value }: Entry): Entry[] => // what to append for it: nothing, one or many
  value == null ? [] : [{ key, value: { order: value } }];

async function call(method: string, url: string, body?: object): Promise<Answer> {
  while (!stopped) { // the same until there is an answer: all of this may be repeated
    const request = { method, headers, body: JSON.stringify(body), signal: AbortSignal.timeout(90_000) };
    const answer = await fetch(url, request).catch(() => undefined);
    const content = await answer?.json().catch(() => undefined); // without: nobody knows what was done
    const expected = ["unknown_member", "illegal_generation", "offset_commit_conflict"];
    if (content && (answer!.ok || expected.includes(content.code))) return content;
    if (content && answer!.status < 500 && ![408, 429].includes(answer!.status)) await stop(content);
    await sleep(Number(answer?.headers.get("Retry-After")) * 1000 || 200);
  }
  return new Promise(() => {}); // the process ends
}

function commit({ records = [], generation, cursor }: Answer): Promise<Answer> { // all or nothing, and once
  const now = Date.now().toString(16).padStart(12, "0"), made = records.flatMap(transform);
  const transaction_id = `${now.slice(0, 8)}-${now.slice(8)}-7${randomUUID().slice(15)}`; // a UUIDv7
  const appends = made.length ? [{ topic: target, records: made }] : [];
  const offsets = [{ group, member_id: member, generation, cursor }];
  return call("POST", `${url}/v1/transactions`, { transaction_id, appends, offsets, commit: true });
}

async function stop({ code, detail }: Partial<Answer> = {}): Promise<never> {
  stopped = true;
  if (code) console.error(`${code}: ${detail}`);
  if (member && !instance_id) await fetch(`${members}/${member}`, { method: "DELETE", headers }).catch(() => {});
  process.exit(code ? 1 : 0);
}

process.once("SIGTERM", () => stop());
for (;;) {
  member ||= (await call("POST", members, { topics: [source], instance_id })).member_id;
  const page = await call("GET", `${members}/${member}/records?limit=100&wait_ms=20000${cursor}`);
  const answer = page.records?.length ? await commit(page) : page;
  cursor = answer.code ? "" : `&cursor=${page.cursor}`;
  if (answer.code === "unknown_member") member = "";
}
