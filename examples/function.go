// One request in, one transaction out, exactly once: a function as serverless platforms run them.
//
//	oncelog topic create orders --partitions 4 && oncelog topic create audit && go run examples/function.go
//	curl 127.0.0.1:8000 -d '{"id": "evt_1", "customer": "customer-7", "total": 12.5}'
//
// The event's id, in whatever form its sender makes them, is the Idempotency-Key of the transaction. So the
// event is recorded once, however often and wherever it is delivered, and nothing is kept in between. Where
// it is not certain that it was recorded the answer is 503, and the sender delivers it again.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

type object = map[string]any

var server = append(strings.Fields(os.Getenv("ONCELOG_URL")), "http://127.0.0.1:8080")[0]
var client = http.Client{Timeout: 20 * time.Second}

// handle gives a status and an answer. What is appended follows from the event alone: a repeat is the same.
func handle(event json.RawMessage) (int, []byte) {
	var order struct{ ID, Customer string }
	if err := json.Unmarshal(event, &order); err != nil {
		return 400, []byte(`{"detail": "Expected a JSON object, with an id."}`)
	}
	sent, _ := json.Marshal(object{"commit": true, "appends": []object{
		{"topic": "orders", "records": []object{{"key": order.Customer, "value": event}}},
		{"topic": "audit", "records": []object{{"value": object{"ordered": order.ID}}}}}})
	request, _ := http.NewRequest("POST", server+"/v1/transactions", bytes.NewReader(sent))
	key, token := url.QueryEscape(order.ID), os.Getenv("ONCELOG_TOKEN") // headers are ASCII
	request.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "Authorization": {"Bearer " + token}}
	if response, err := client.Do(request); err == nil {
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if s := response.StatusCode; err == nil && (s < 300 || s == 400 || s == 410 || s == 413 || s == 422) {
			return s, answer // a refusal of these: the event is to blame
		}
	}
	return 503, []byte(`{"detail": "It is not certain that this was recorded. Deliver it again."}`)
}

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		event, _ := io.ReadAll(r.Body)
		status, answer := handle(event)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(answer)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+append(strings.Fields(os.Getenv("PORT")), "8000")[0], nil))
}
