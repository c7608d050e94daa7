// What worker.go needs of an HTTP client, made of Go's standard library.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

var server = append(strings.Fields(os.Getenv("ONCELOG_URL")), "http://127.0.0.1:8080")[0]
var expected = map[string]bool{"unknown_member": true, "illegal_generation": true, "offset_commit_conflict": true}
var client, bearer = http.Client{Timeout: 90 * time.Second}, "Bearer " + os.Getenv("ONCELOG_TOKEN")

// answer is what a worker wants to know of any; one with a code is a problem.
type answer struct {
	Code, Detail, Cursor string
	MemberID             string `json:"member_id"`
	Generation           int64
	Records              []map[string]json.RawMessage
}

// call sends the same until there is an answer: whatever is sent with it may be repeated.
func call(stop context.Context, method, path string, body any) answer {
	text, _ := json.Marshal(body)
	sent := strings.TrimPrefix(string(text), "null") // nothing, where there is no body
	for pause := time.Duration(0); stop.Err() == nil; time.Sleep(pause + time.Second/5) {
		request, _ := http.NewRequestWithContext(stop, method, server+path, strings.NewReader(sent))
		request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {bearer}}
		response, err := client.Do(request)
		if err != nil {
			continue // nobody knows what was done
		}
		var got answer
		err = json.NewDecoder(response.Body).Decode(&got)
		response.Body.Close()
		status := response.StatusCode
		if status == 204 || err == nil && (status < 400 || expected[got.Code]) {
			return got
		}
		if err == nil && status < 500 && status != 408 && status != 429 {
			log.Fatalln(got.Code, got.Detail)
		}
		pause, _ = time.ParseDuration(response.Header.Get("Retry-After") + "s")
	}
	return answer{}
}

func uuid7() string { // RFC 9562
	random := make([]byte, 10)
	rand.Read(random)
	hex := fmt.Sprintf("%012x7%x", time.Now().UnixMilli(), random)
	return fmt.Sprintf("%s-%s-%s-8%s-%s", hex[:8], hex[8:12], hex[12:16], hex[17:20], hex[20:32])
}
