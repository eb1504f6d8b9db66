package main

import "sync"

// rights are the privileges that the user lacks, by object; everything else is allowed.
type rights struct {
	mutex   sync.Mutex
	missing map[string]map[string]bool // privilege to the names of objects; `*` is every object
}

func newRights() *rights {
	return &rights{missing: make(map[string]map[string]bool)}
}
