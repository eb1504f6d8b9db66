package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"sync"
)

// message is one line of JSON, both ways: a request has `do`, an answer has `answer`, which is the id of its request.
type message struct {
	ID     int             `json:"id,omitempty"`
	Do     string          `json:"do,omitempty"`
	With   json.RawMessage `json:"with,omitempty"`
	Answer int             `json:"answer,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// order carries out a request of the tests.
type order func(with json.RawMessage) (interface{}, error)

// link is the pipe to the process of the tests, which orders faults and keeps the guests.
type link struct {
	input  *bufio.Reader
	output io.Writer

	mutex sync.Mutex
	last  int
	asked map[int]chan message
}

func newLink(input *bufio.Reader, output io.Writer) *link {
	return &link{input: input, output: output, asked: make(map[int]chan message)}
}

// serve says that all is ready, and answers requests until the input ends.
func (l *link) serve(orders map[string]order, ready interface{}) {
	l.send(message{Do: "ready", With: encode(ready)})
	for {
		line, err := l.input.ReadBytes('\n')
		if err != nil {
			return
		}
		var got message
		if err := json.Unmarshal(line, &got); err != nil {
			log.Fatalf("no message: %s", line)
		}
		if got.Answer != 0 {
			l.mutex.Lock()
			waiting := l.asked[got.Answer]
			delete(l.asked, got.Answer)
			l.mutex.Unlock()
			waiting <- got
			continue
		}
		go l.carryOut(orders[got.Do], got)
	}
}

func (l *link) carryOut(do order, got message) {
	answer := message{Answer: got.ID}
	if do == nil {
		answer.Error = fmt.Sprintf("there is no order %q", got.Do)
	} else if result, err := do(got.With); err != nil {
		answer.Error = err.Error()
	} else {
		answer.Result = encode(result)
	}
	l.send(answer)
}

// ask has the other side do something and puts its answer into result.
func (l *link) ask(do string, with, result interface{}) error {
	answered := make(chan message, 1)
	l.mutex.Lock()
	l.last++
	id := l.last
	l.asked[id] = answered
	l.mutex.Unlock()

	l.send(message{ID: id, Do: do, With: encode(with)})
	got := <-answered
	if got.Error != "" {
		return fmt.Errorf("%s: %s", do, got.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(got.Result, result)
}

func (l *link) send(one message) {
	line := append(encode(one), '\n')
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, err := l.output.Write(line); err != nil {
		log.Fatalf("the tests are gone: %s", err)
	}
}

func encode(value interface{}) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		log.Fatalf("no JSON: %s", err)
	}
	return text
}
