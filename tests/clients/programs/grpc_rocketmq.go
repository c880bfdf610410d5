// Drives `rocketmq-clients/golang/v5`, which speaks gRPC. The job is that of grpc_rocketmq.py, without recall, which this
// client does not have.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const invisible, again = 60 * time.Second, 10 * time.Second

type job struct {
	Endpoints    string            `json:"endpoints"`
	Topic        string            `json:"topic"`
	Group        string            `json:"group"`
	Bodies       []string          `json:"bodies"`
	Receive      int               `json:"receive"`
	Push         bool              `json:"push"`
	Again        []string          `json:"again"`
	Fail         []string          `json:"fail"`
	Hold         []string          `json:"hold"`
	Tag          string            `json:"tag"`
	Only         string            `json:"only"`
	Sql          string            `json:"sql"`
	MessageGroup string            `json:"messageGroup"`
	DelayS       int               `json:"delayS"`
	Properties   map[string]string `json:"properties"`
	Transaction  string            `json:"transaction"`
	Tls          bool              `json:"tls"`
	AccessKey    string            `json:"accessKey"`
	SecretKey    string            `json:"secretKey"`
}

var asked job
var telling sync.Mutex

func tell(name string, value any) {
	telling.Lock()
	defer telling.Unlock()
	line, err := json.Marshal(map[string]any{name: value})
	must(err)
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config() *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: asked.AccessKey, AccessSecret: asked.SecretKey}
	if asked.AccessKey == "" {
		keys = &credentials.SessionCredentials{AccessKey: "nobody", AccessSecret: "nothing"}
	}
	return &rmq.Config{Endpoint: asked.Endpoints, ConsumerGroup: asked.Group, Credentials: keys}
}

func send() {
	asks := make(chan string, 16)
	options := []rmq.ProducerOption{rmq.WithTopics(asked.Topic)}
	if asked.Transaction != "" {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: func(view *rmq.MessageView) rmq.TransactionResolution {
			asks <- string(view.GetBody())
			return rmq.COMMIT
		}}))
	}
	producer, err := rmq.NewProducer(config(), options...)
	must(err)
	must(producer.Start())
	for _, body := range asked.Bodies {
		message := &rmq.Message{Topic: asked.Topic, Body: []byte(body)}
		tag := asked.Tag
		if tag == "" {
			tag = "paid"
		}
		message.SetTag(tag)
		message.SetKeys("key")
		if asked.MessageGroup != "" {
			message.SetMessageGroup(asked.MessageGroup)
		}
		if asked.DelayS > 0 {
			message.SetDelayTimestamp(time.Now().Add(time.Duration(asked.DelayS) * time.Second))
		}
		for name, value := range asked.Properties {
			message.AddProperty(name, value)
		}
		var receipts []*rmq.SendReceipt
		var transaction rmq.Transaction
		if asked.Transaction == "" {
			receipts, err = producer.Send(context.Background(), message)
		} else {
			transaction = producer.BeginTransaction()
			receipts, err = producer.SendWithTransaction(context.Background(), message, transaction)
		}
		must(err)
		tell("sent", map[string]any{"id": receipts[0].MessageID, "offset": receipts[0].Offset})
		switch asked.Transaction {
		case "commit":
			must(transaction.Commit())
		case "rollback":
			must(transaction.RollBack())
		case "lost":
			tell("checked", <-asks)
			time.Sleep(time.Second) // Its answer leaves behind the check.
		}
	}
	must(producer.GracefulStop())
}

func told(view *rmq.MessageView) string {
	tag := ""
	if view.GetTag() != nil {
		tag = *view.GetTag()
	}
	body := string(view.GetBody())
	tell("received", map[string]any{"body": body, "attempt": view.GetDeliveryAttempt(), "tag": tag, "id": view.GetMessageId()})
	return body
}

func filters() map[string]*rmq.FilterExpression {
	chosen := rmq.SUB_ALL
	if asked.Sql != "" {
		chosen = rmq.NewFilterExpressionWithType(asked.Sql, rmq.SQL92)
	} else if asked.Only != "" {
		chosen = rmq.NewFilterExpression(asked.Only)
	}
	return map[string]*rmq.FilterExpression{asked.Topic: chosen}
}

func fails() map[string]bool {
	found := map[string]bool{}
	for _, body := range asked.Again {
		found[body] = true
	}
	return found
}

func receive() {
	failing := fails()
	consumer, err := rmq.NewSimpleConsumer(config(), rmq.WithSimpleAwaitDuration(5*time.Second), rmq.WithSimpleSubscriptionExpressions(filters()))
	must(err)
	must(consumer.Start())
	for left := asked.Receive; left > 0; {
		views, err := consumer.Receive(context.Background(), 32, invisible)
		if err != nil { // No message is an error of this client.
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		for _, view := range views {
			if body := told(view); failing[body] {
				delete(failing, body)
				must(consumer.ChangeInvisibleDuration(view, again))
			} else {
				must(consumer.Ack(context.Background(), view))
				left--
			}
		}
	}
	must(consumer.GracefulStop())
}

func push() {
	failing, left, over := fails(), asked.Receive, make(chan bool, 1)
	consumer, err := rmq.NewPushConsumer(config(), rmq.WithPushAwaitDuration(5*time.Second), rmq.WithPushSubscriptionExpressions(filters()),
		rmq.WithPushConsumptionThreadCount(1), rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
			body := told(view)
			if slices.Contains(asked.Hold, body) {
				select {}
			}
			if failing[body] || slices.Contains(asked.Fail, body) {
				delete(failing, body)
				return rmq.FAILURE
			}
			left--
			if left == 0 {
				over <- true
			}
			return rmq.SUCCESS
		}}))
	must(err)
	must(consumer.Start())
	<-over
	time.Sleep(time.Second) // The last acknowledgement leaves behind the listener.
	must(consumer.GracefulStop())
}

func main() {
	must(json.Unmarshal([]byte(os.Args[1]), &asked))
	os.Setenv("mq.consoleAppender.enabled", "true")
	rmq.ResetLogger()
	rmq.EnableSsl = asked.Tls
	switch {
	case len(asked.Bodies) > 0:
		send()
	case asked.Push:
		push()
	default:
		receive()
	}
	tell("done", true)
}
