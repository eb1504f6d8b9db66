package main

import (
	"fmt"
	"sync"
)

// rule is a fault on order: what becomes of calls of a method. All fields but the method are free.
type rule struct {
	Method  string  `json:"method"` // `*`: every method
	Times   int     `json:"times"`  // 0: always
	Fault   string  `json:"fault"`
	Message string  `json:"message"`
	At      float64 `json:"at"`      // share of its work that a task has done when it fails; below 0: it never starts
	Seconds float64 `json:"seconds"` // how long that takes
	Delay   float64 `json:"delay"`   // seconds
	Hang    bool    `json:"hang"`    // it is accepted, and never answered
	Cut     bool    `json:"cut"`     // it is carried out, and the connection closed instead of an answer

	released chan struct{}
}

// rules are those in force, and the count of all calls by method.
type rules struct {
	mutex  sync.Mutex
	rules  []*rule
	counts map[string]int
}

func newRules() *rules {
	return &rules{counts: make(map[string]int)}
}

// add puts a rule in force. Of several for a method the newest counts.
func (r *rules) add(one rule) error {
	if one.Fault != "" && !isFault(one.Fault) {
		return fmt.Errorf("there is no fault %q", one.Fault)
	}
	one.released = make(chan struct{})
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.rules = append(r.rules, &one)
	return nil
}

// apply counts a call and gives the rule for it, or an empty one.
func (r *rules) apply(call *call) rule {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.counts[call.name]++
	for at := len(r.rules) - 1; at >= 0; at-- {
		one := r.rules[at]
		if one.Method != call.name && one.Method != "*" {
			continue
		}
		found := *one
		if one.Times == 1 {
			r.rules = append(r.rules[:at], r.rules[at+1:]...)
		} else if one.Times > 1 {
			one.Times--
		}
		return found
	}
	return rule{}
}

// clear takes all rules back; calls that hang or wait do so no longer.
func (r *rules) clear() {
	r.release()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.rules = nil
}

// release ends calls that hang, without an answer, and the waiting of those that are delayed.
func (r *rules) release() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, one := range r.rules {
		close(one.released)
		one.released = make(chan struct{})
	}
}

// calls gives the count of calls by method.
func (r *rules) calls() map[string]int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	copied := make(map[string]int, len(r.counts))
	for name, count := range r.counts {
		copied[name] = count
	}
	return copied
}
