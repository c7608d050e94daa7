#!/usr/bin/env python3
"""Consume, change, produce, exactly once, with nothing but Python's standard library.

It reads one partition of a topic, makes a new record of each, and appends those to the partition of
the same number of another topic. How far it has read is a committed offset of a group, and lies in
the same transaction as what it has made of it. So whenever this program, its machine or the server
is killed, each record has been changed once, or not yet. Start it twice by mistake, and that still holds.

    oncelog topic create orders && oncelog topic create invoices
    examples/transform.py --source orders --target invoices --group billing

--form whole     each batch is one POST /v1/transactions. Nothing has to be kept between two batches,
                 and none of several instances is the rightful one: the faster one commits.
--form session   a session, and a transaction of several requests. Of several instances the one that
                 was started last goes on, and the others are told to stop.

The token, where one is asked for, is taken from ONCELOG_TOKEN; its scope needs consume for the source,
produce for the target, and group.
"""

import argparse
import http.client
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
import uuid


def change(record):
    """What becomes of a record. The same record must always become the same."""
    made = {"value": {"invoice": record["offset"], "order": record["value"]}}
    if "key" in record:
        made["key"] = record["key"]
    return made


class Refused(Exception):
    """A problem that does not go away when the same is sent again."""

    def __init__(self, problem):
        super().__init__(f"{problem['code']}: {problem['detail']}")
        self.problem = problem
        self.code = problem["code"]


class Server:
    def __init__(self, url, token):
        self.url = url
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def call(self, method, path, body=None):
        """The same request, until there is an answer. Each one here can be repeated: it carries an id
        or a sequence, or says what is to be, or only reads."""
        data = None if body is None else json.dumps(body).encode()
        while True:
            request = urllib.request.Request(self.url + path, data, self.headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as answer:
                problem = read_problem(answer)
                if problem and problem["retry"] not in ("same", "later"):
                    raise Refused(problem) from None
            except (OSError, http.client.HTTPException, ValueError):
                pass  # no answer, or half of one: nobody knows what was done
            time.sleep(0.2)


def read_problem(answer):
    """None: it comes from something in between, or was cut off."""
    try:
        return json.load(answer)
    except (OSError, http.client.HTTPException, ValueError):
        return None


def uuid7():
    """A UUIDv7 (RFC 9562); from Python 3.14 on it is uuid.uuid7()."""
    bits = int(time.time() * 1000) << 80 | secrets.randbits(80)
    bits = bits & ~(0xF << 76) | 7 << 76  # the version
    bits = bits & ~(0x3 << 62) | 2 << 62  # the variant
    return str(uuid.UUID(int=bits))


class Transform:
    def __init__(self, server, options):
        self.server = server
        self.options = options

    def committed_offset(self):
        """Where the group goes on; None: it has not begun."""
        try:
            answer = self.server.call("GET", f"/v1/groups/{self.options.group}/offsets")
        except Refused as refused:
            if refused.code == "group_not_found":
                return None
            raise
        here = (self.options.source, self.options.partition)
        found = (o["offset"] for o in answer["offsets"] if (o["topic"], o["partition"]) == here)
        return next(found, None)

    def read(self, offset):
        """A page of records; empty only when the end was reached and nothing came for a while."""
        o = self.options
        start = "earliest" if offset is None else offset
        wait_ms = 0 if o.drain else 20_000
        return self.server.call(
            "GET",
            f"/v1/topics/{o.source}/partitions/{o.partition}/records"
            f"?offset={start}&limit={o.batch}&wait_ms={wait_ms}",
        )

    def appends(self, page):
        o = self.options
        records = [change(record) for record in page["records"]]
        return [{"topic": o.target, "partition": o.partition, "records": records}]

    def offsets(self, page, expected_offset):
        """From the offset that was read last to the one behind the page, if nobody else was faster."""
        o = self.options
        return [
            {
                "group": o.group,
                "topic": o.source,
                "partition": o.partition,
                "offset": page["next_offset"],
                "expected_offset": expected_offset,
            }
        ]

    def run(self, commit):
        """`commit` a page after the other; whatever it was refused for, the committed offset tells what
        is to be done next."""
        offset = self.committed_offset()
        while True:
            page = self.read(offset)
            if page["records"]:
                if commit(page, offset):
                    offset = page["next_offset"]
                else:
                    offset = self.committed_offset()
            elif self.options.drain:
                return

    # --form whole

    def commit_whole(self, page, offset):
        """All of it in one request. The id makes its repeat harmless: the transaction runs once."""
        body = {
            "transaction_id": uuid7(),
            "commit": True,
            "appends": self.appends(page),
            "offsets": self.offsets(page, offset),
        }
        try:
            self.server.call("POST", "/v1/transactions", body)
            return True
        except Refused as refused:
            # expired: this machine slept for a week over an answer
            if refused.code not in ("offset_commit_conflict", "transaction_expired"):
                raise
            wait_where_pinned(refused)
            return False

    # --form session

    def open(self):
        """From the answer on, nothing of an instance that was started earlier is accepted; what it had
        not committed is aborted."""
        name = f"{self.options.group}-{self.options.source}-{self.options.partition}"
        body = {"transactional_id": name, "open_id": uuid7()}
        session = self.server.call("POST", "/v1/sessions", body)
        self.session = {"producer_id": session["producer_id"], "epoch": session["epoch"]}

    def commit_staged(self, page, offset):
        """Begin, append, add the offsets, commit. The appends may be many requests: each has its
        sequence, and `expected_appends` makes sure that none is missing."""
        me = self.session
        transaction_id = uuid7()
        path = f"/v1/transactions/{transaction_id}"
        appends = self.appends(page)
        try:
            self.server.call("POST", "/v1/transactions", {**me, "transaction_id": transaction_id})
            self.server.call("POST", f"{path}/records", {**me, "sequence": 0, "appends": appends})
            offsets = {**me, "offsets": self.offsets(page, offset)}
            self.server.call("POST", f"{path}/offsets", offsets)
            self.server.call("POST", f"{path}/commit", {**me, "expected_appends": len(appends)})
            return True
        except Refused as refused:
            if refused.problem["retry"] == "reopen":  # idle for so long that it was forgotten
                self.open()
            elif refused.code == "offset_commit_conflict":  # somebody commits without a session
                self.server.call("POST", f"{path}/abort", me)
                wait_where_pinned(refused)
            elif refused.code not in ("invalid_transaction_state", "transaction_expired"):
                raise  # those two: it has timed out, or this machine slept for a week over an answer
            return False


def wait_where_pinned(refused):
    """A prepared transaction of somebody else holds the group's offset until it ends."""
    if refused.problem.get("transaction_id"):
        time.sleep(1)


def main():
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--url", default=os.environ.get("ONCELOG_URL", "http://127.0.0.1:8080"))
    arguments.add_argument("--source", required=True, help="the topic to read")
    arguments.add_argument("--target", required=True, help="the topic to append to")
    arguments.add_argument("--group", required=True, help="whose committed offset it goes by")
    arguments.add_argument("--partition", type=int, default=0, help="of both topics")
    arguments.add_argument("--batch", type=int, default=100, help="most records of a transaction")
    arguments.add_argument("--form", choices=["whole", "session"], default="whole")
    arguments.add_argument("--drain", action="store_true", help="stop where the partition ends")
    options = arguments.parse_args()
    transform = Transform(Server(options.url, os.environ.get("ONCELOG_TOKEN")), options)
    try:
        if options.form == "session":
            transform.open()
            transform.run(transform.commit_staged)
        else:
            transform.run(transform.commit_whole)
    except Refused as refused:
        sys.exit(str(refused))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
