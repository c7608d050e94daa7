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
	orders := object{"topic": "orders", "records": []object{{"key": order.Customer, "value": event}}}
	audit := object{"topic": "audit", "records": []object{{"value": object{"ordered": order.ID}}}}
	sent, _ := json.Marshal(object{"appends": []object{orders, audit}, "commit": true})
	request, _ := http.NewRequest("POST", server+"/v1/transactions", bytes.NewReader(sent))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", url.QueryEscape(order.ID)) // headers are ASCII
	request.Header.Set("Authorization", "Bearer "+os.Getenv("ONCELOG_TOKEN"))
	if response, err := client.Do(request); err == nil {
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		status := response.StatusCode // 400, 410, 413, 422: the event is to blame
		if err == nil && (status < 300 || status == 400 || status == 410 || status == 413 || status == 422) {
			return status, answer
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
