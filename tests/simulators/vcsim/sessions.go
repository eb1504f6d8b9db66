package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/soap"
)

// sessions are those that the vCenter still knows. The simulator never forgets one by itself; here they end when they are
// idle for too long, when a test says so, and with a restart.
type sessions struct {
	mutex sync.Mutex
	idle  time.Duration // 0: never too long
	used  map[string]time.Time
}

func newSessions() *sessions {
	return &sessions{used: make(map[string]time.Time)}
}

// check gives the session of a request; of one that is unknown the cookie is taken away, so that the simulator sees none.
func (s *sessions) check(r *http.Request) string {
	cookie, err := r.Cookie(soap.SessionCookieName)
	if err != nil {
		return ""
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	used, known := s.used[cookie.Value]
	if !known || s.idle > 0 && time.Since(used) > s.idle {
		delete(s.used, cookie.Value)
		r.Header.Del("Cookie")
		return ""
	}
	s.used[cookie.Value] = time.Now()
	return cookie.Value
}

// learn remembers the session that an answer to a login gives.
func (s *sessions) learn(answer http.Header) {
	for _, cookie := range (&http.Response{Header: answer}).Cookies() {
		if cookie.Name == soap.SessionCookieName {
			s.mutex.Lock()
			s.used[cookie.Value] = time.Now()
			s.mutex.Unlock()
		}
	}
}

// forget ends all sessions.
func (s *sessions) forget() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.used = make(map[string]time.Time)
}

// expire sets how long a session may be idle.
func (s *sessions) expire(idle time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.idle = idle
}
