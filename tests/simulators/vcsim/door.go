package main

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// door is where clients come in; it can be shut for a while, as when a vCenter restarts.
type door struct {
	tls *tls.Config

	mutex   sync.Mutex
	server  *http.Server
	handler http.Handler
}

// open lets clients in.
func (c *center) open(listener net.Listener) {
	if c.door.handler == nil {
		c.door.handler = c.handler()
	}
	server := &http.Server{Handler: c.door.handler, TLSConfig: c.door.tls, ErrorLog: log.Default()}
	c.door.mutex.Lock()
	c.door.server = server
	c.door.mutex.Unlock()
	go server.ServeTLS(listener, "", "")
}

// restart is what clients see of a vCenter that restarts: connections are cut and refused for a while, then all sessions
// and tasks are unknown. Hosts and VMs know nothing of it, so a vMotion that is on its way goes on.
func (c *center) restart(closed time.Duration) error {
	c.door.mutex.Lock()
	server := c.door.server
	c.door.mutex.Unlock()
	server.Close()
	c.rules.release()
	c.sessions.forget()
	c.tasks.forget()
	c.pages.forget()
	time.Sleep(closed)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", c.address)
	if err != nil {
		return err
	}
	c.open(listener)
	return nil
}
