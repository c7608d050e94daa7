#!/usr/bin/env python3
"""Consume, transform, produce, exactly once, in as many workers as you like.

    oncelog topic create orders --partitions 4 && oncelog topic create invoices --partitions 4
    examples/worker.py orders invoices billing [instance-id]

What was made of some records, and how far they were read, are one transaction: whoever is killed,
each record has been processed once, or not yet. A worker that is back within its lease with its
instance id keeps its partitions; one without leaves when it is stopped, and others take over."""
import http.client, json, os, signal, sys, time, urllib.parse, uuid

url = urllib.parse.urlsplit(os.environ.get("ONCELOG_URL", "http://127.0.0.1:8080"))
connection = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
server, token = connection(url.netloc, timeout=90), os.environ.get("ONCELOG_TOKEN", "")
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
source, target, group, instance = (*sys.argv[1:], None)[:4]
members, member, cursor = f"/v1/groups/{group}/members", None, ""

def transform(record):  # what to append for it: nothing, one or many
    value = record.get("value")
    return [] if value is None else [{"key": record.get("key"), "value": {"order": value}}]

def call(method, path, body=None):  # the same until there is an answer: all of this may be repeated
    while True:
        pause = 0.2
        try:
            server.request(method, path, body and json.dumps(body), headers)
            answer = server.getresponse()
            content = json.loads(answer.read() or "{}")
            expected = ("unknown_member", "illegal_generation", "offset_commit_conflict")
            if answer.status < 400 or content.get("code") in expected:
                return content
            if answer.status < 500 and answer.status not in (408, 429):
                sys.exit(f"{content['code']}: {content['detail']}")
            pause = float(answer.headers["Retry-After"] or pause)
        except (OSError, http.client.HTTPException, ValueError):
            server.close()  # nobody knows what was done
        time.sleep(pause)

def commit(page):  # all that comes of it or nothing, and once
    now = f"{int(time.time() * 1000):012x}"
    transaction_id = f"{now[:8]}-{now[8:]}-7{str(uuid.uuid4())[15:]}"  # a UUIDv7
    made = [new for record in page["records"] for new in transform(record)]
    appends = [{"topic": target, "records": made}] if made else []
    read = {"group": group, "member_id": member, "generation": page["generation"], "cursor": page["cursor"]}
    work = {"transaction_id": transaction_id, "appends": appends, "offsets": [read], "commit": True}
    return call("POST", "/v1/transactions", work)

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    while True:
        member = member or call("POST", members, {"topics": [source], "instance_id": instance})["member_id"]
        page = call("GET", f"{members}/{member}/records?limit=100&wait_ms=20000{cursor}")
        answer = commit(page) if page.get("records") else page
        cursor = "" if "code" in answer else f"&cursor={page['cursor']}"
        member = None if answer.get("code") == "unknown_member" else member
finally:
    if member and not instance:
        call("DELETE", f"{members}/{member}")
