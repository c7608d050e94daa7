// Consume, transform, produce, exactly once, in as many workers as you like; worker.py tells more.
//
//	go run examples/worker.go examples/client.go orders invoices billing [instance-id]
package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"syscall"
)

type object = map[string]any

// transform tells what to append for a record: nothing, one or many.
func transform(record map[string]json.RawMessage) []object {
	if value := record["value"]; value != nil && string(value) != "null" {
		return []object{{"key": record["key"], "value": object{"order": value}}}
	}
	return nil
}

func main() {
	source, target, group := os.Args[1], os.Args[2], os.Args[3]
	join, members := object{"topics": []string{source}}, "/v1/groups/"+group+"/members"
	if len(os.Args) > 4 {
		join["instance_id"] = os.Args[4]
	}
	stop, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	member, cursor := "", ""
	for stop.Err() == nil {
		if member == "" {
			member = call(stop, "POST", members, join).MemberID
		}
		page := call(stop, "GET", members+"/"+member+"/records?limit=100&wait_ms=20000"+cursor, nil)
		made, answer := []object{}, page
		for _, record := range page.Records {
			made = append(made, transform(record)...)
		}
		if len(page.Records) > 0 { // all that comes of them, or nothing; the id lets it run once
			read := object{"group": group, "member_id": member, "generation": page.Generation, "cursor": page.Cursor}
			work := object{"transaction_id": uuid7(), "offsets": []object{read}, "commit": true}
			if len(made) > 0 {
				work["appends"] = []object{{"topic": target, "records": made}}
			}
			answer = call(stop, "POST", "/v1/transactions", work)
		}
		switch cursor = ""; answer.Code {
		case "":
			cursor = "&cursor=" + page.Cursor
		case "unknown_member":
			member = ""
		}
	}
	if len(os.Args) == 4 && member != "" {
		call(context.Background(), "DELETE", members+"/"+member, nil)
	}
}
