// RocketMQ's Go client does one job, given as one JSON object, and reports what happened as JSON lines.
//
//	{"nameServer", "topic", "group", and either
//	 "bodies": […], optional "tag", "key", "delay": level, "transaction": true (bodies that begin with "no" are rolled back)
//	 "receive": count, optional "tag", "orderly"}
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type job struct {
	NameServer  string   `json:"nameServer"`
	Topic       string   `json:"topic"`
	Group       string   `json:"group"`
	Bodies      []string `json:"bodies"`
	Tag         string   `json:"tag"`
	Key         string   `json:"key"`
	Delay       int      `json:"delay"`
	Transaction bool     `json:"transaction"`
	Receive     int      `json:"receive"`
	Orderly     bool     `json:"orderly"`
}

func main() {
	rlog.SetLogLevel("error")
	var asked job
	must(json.Unmarshal([]byte(os.Args[1]), &asked))
	switch {
	case asked.Receive > 0:
		receive(asked)
	case asked.Transaction:
		sendTransactions(asked)
	default:
		send(asked)
	}
	report(map[string]any{"done": true})
}

func send(asked job) {
	sender, err := rocketmq.NewProducer(producer.WithNameServer([]string{asked.NameServer}), producer.WithGroupName(asked.Group))
	must(err)
	must(sender.Start())
	for _, body := range asked.Bodies {
		result, err := sender.SendSync(context.Background(), message(asked, body))
		must(err)
		report(map[string]any{"sent": map[string]any{
			"body": body, "status": int(result.Status), "offset": result.QueueOffset, "queue": result.MessageQueue.QueueId,
		}})
	}
	must(sender.Shutdown())
}

type byBody struct{}

func (byBody) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	if strings.HasPrefix(string(message.Body), "no") {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func (byBody) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.UnknowState
}

func sendTransactions(asked job) {
	sender, err := rocketmq.NewTransactionProducer(byBody{},
		producer.WithNameServer([]string{asked.NameServer}), producer.WithGroupName(asked.Group))
	must(err)
	must(sender.Start())
	for _, body := range asked.Bodies {
		result, err := sender.SendMessageInTransaction(context.Background(), message(asked, body))
		must(err)
		report(map[string]any{"sent": map[string]any{"body": body, "status": int(result.Status)}})
	}
	must(sender.Shutdown())
}

func message(asked job, body string) *primitive.Message {
	made := primitive.NewMessage(asked.Topic, []byte(body))
	if asked.Tag != "" {
		made.WithTag(asked.Tag)
	}
	if asked.Key != "" {
		made.WithKeys([]string{asked.Key})
	}
	if asked.Delay > 0 {
		made.WithDelayTimeLevel(asked.Delay)
	}
	return made
}

func receive(asked job) {
	got := make(chan *primitive.MessageExt, asked.Receive)
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{asked.NameServer}),
		consumer.WithGroupName(asked.Group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(asked.Orderly),
	)
	must(err)
	selector := consumer.MessageSelector{}
	if asked.Tag != "" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: asked.Tag}
	}
	must(reader.Subscribe(asked.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, each := range messages {
				got <- each
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(reader.Start())
	for count := 0; count < asked.Receive; count++ {
		each := <-got
		report(map[string]any{"received": map[string]any{
			"body": string(each.Body), "tag": each.GetTags(), "key": each.GetKeys(), "queue": each.Queue.QueueId,
			"offset": each.QueueOffset, "born": each.BornTimestamp, "stored": each.StoreTimestamp,
		}})
	}
	must(reader.Shutdown())
}

func report(event map[string]any) {
	line, err := json.Marshal(event)
	must(err)
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
