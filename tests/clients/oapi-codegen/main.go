// A client from oapi-codegen. Usage: client URL TOPIC
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"oncelog.example/client/oncelog"
)

func ptr[T any](value T) *T { return &value }

func decide(problem *oncelog.Problem) string {
	switch problem.Retry {
	case oncelog.Same, oncelog.Later:
		return "send it again"
	case oncelog.Reopen:
		return "open the session again"
	}
	if problem.Code == oncelog.ProducerFenced {
		return "stop: a newer session is open"
	}
	return "change the request"
}

// Stops at an error and at an answer of an unexpected status.
func must[T any](answer *T, err error) *T {
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func main() {
	url, topic := os.Args[1], os.Args[2]
	ctx := context.Background()
	client := must(oncelog.NewClientWithResponses(url))

	one := oncelog.PutTopic{PartitionCount: ptr(int64(1))}
	must(client.PutTopicWithResponse(ctx, topic, one))
	named := oncelog.OpenSession{TransactionalId: &topic}
	session := must(client.OpenSessionWithResponse(ctx, nil, named)).JSON201
	fmt.Println("session: epoch", session.Epoch)

	batch := oncelog.Append{
		ProducerId: &session.ProducerId,
		Epoch:      &session.Epoch,
		Sequence:   ptr(int64(0)),
		Records: []oncelog.Record{
			{Key: ptr("customer-7"), Value: map[string]any{"total": 12.5}},
			{ValueBase64: ptr("AAEC")},
		},
	}
	for _, attempt := range []string{"append", "repeat"} {
		done := must(client.AppendToTopicWithResponse(ctx, topic, nil, batch)).JSON200
		fmt.Printf("%s: %d records, duplicate %t\n", attempt, len(*done.Offsets), done.Duplicate)
	}

	from := oncelog.ReadPartitionParams{Offset: ptr("0")}
	read := must(client.ReadPartitionWithResponse(ctx, topic, 0, &from)).JSON200
	total := read.Records[0].Value.(map[string]any)["total"]
	fmt.Printf("read: %d records, total %v\n", len(read.Records), total)

	records := []oncelog.Record{{Value: "invoiced"}}
	once := oncelog.BeginTransactionParams{IdempotencyKey: ptr("evt-" + topic)}
	done := must(client.BeginTransactionWithResponse(ctx, &once, oncelog.BeginTransaction{
		Commit:  ptr(true),
		Appends: &[]oncelog.TransactionAppend{{Topic: topic, Records: records}},
	})).JSON201
	fmt.Printf("transaction: %s, %d record\n", done.State, (*done.Appends)[0].RecordCount)

	must(client.OpenSessionWithResponse(ctx, nil, named))
	batch.Sequence = ptr(int64(1))
	refused := must(client.AppendToTopicWithResponse(ctx, topic, nil, batch))
	if problem := refused.ApplicationproblemJSON409; problem != nil {
		fmt.Printf("refusal: %s, %s: %s\n", problem.Code, problem.Retry, decide(problem))
	}
}
