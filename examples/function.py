#!/usr/bin/env python3
"""One request in, one transaction out, exactly once: a function as serverless platforms run them.

    oncelog topic create orders --partitions 4 && oncelog topic create audit && examples/function.py
    curl 127.0.0.1:8000 -d '{"id": "evt_1", "customer": "customer-7", "total": 12.5}'

The event's id, in whatever form its sender makes them, is the Idempotency-Key of the transaction. So the
event is recorded once, however often and wherever it is delivered, and nothing is kept in between. Where
it is not certain that it was recorded the answer is 503, and the sender delivers it again."""
import http.client, http.server, json, os, urllib.parse

url = urllib.parse.urlsplit(os.environ.get("ONCELOG_URL", "http://127.0.0.1:8080"))
connection = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
token = os.environ.get("ONCELOG_TOKEN", "")
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}


def handle(event):
    """A status and an answer. What is appended follows from the event alone: a repeat is the same."""
    key = urllib.parse.quote(str(event.get("id") or ""))  # headers are ASCII
    transaction = {
        "appends": [
            {"topic": "orders", "records": [{"key": event.get("customer"), "value": event}]},
            {"topic": "audit", "records": [{"value": {"ordered": event.get("id")}}]},
        ],
        "commit": True,
    }
    server = connection(url.netloc, timeout=20)
    try:
        once = headers | {"Idempotency-Key": key}
        server.request("POST", "/v1/transactions", json.dumps(transaction), once)
        answer = server.getresponse()
        content = json.load(answer)
        if answer.status < 300 or answer.status in (400, 410, 413, 422):  # the event is to blame
            return answer.status, content
    except (OSError, http.client.HTTPException, ValueError):
        pass
    finally:
        server.close()
    return 503, {"detail": "It is not certain that this was recorded. Deliver it again."}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = handle(event)
        except (AttributeError, TypeError, ValueError):
            status, answer = 400, {"detail": "Expected a JSON object, with an id."}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


port = int(os.environ.get("PORT", 8000))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
