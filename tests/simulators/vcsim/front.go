package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"
)

// method is one that the simulator lacks or does too simply. It answers with the method's response.
type method func(ctx *simulator.Context, call *call) (interface{}, types.BaseMethodFault)

// ownMethods are all of them, by their names in SOAP.
func (c *center) ownMethods() map[string]method {
	all := map[string]method{"CancelTask": c.tasks.cancel, "QueryConfigTarget": c.queryConfigTarget}
	groups := []map[string]method{
		c.machineMethods(), c.migrations.methods(), c.operations.methods(), c.rights.methods(), c.pages.methods(),
	}
	for _, group := range groups {
		for name, own := range group {
			all[name] = own
		}
	}
	return all
}

// handler serves what a vCenter serves: SOAP, its versions, files of datastores and of guests.
func (c *center) handler() http.Handler {
	c.service.Listen = &url.URL{
		Scheme: "https", Host: c.address, Path: vim25.Path, User: url.UserPassword(c.User, c.Password),
	}
	c.service.RegisterSDK(simulator.Map)
	simulator.Map.SessionManager().ServiceHostName = c.address
	mux := http.NewServeMux()
	mux.HandleFunc(vim25.Path, c.serveCall)
	mux.HandleFunc(vim25.Path+"/vimService", c.serveCall)
	mux.HandleFunc(vim25.Path+"/vimServiceVersions.xml", serveVersions)
	mux.HandleFunc("/folder/", c.serveDatastore)
	mux.HandleFunc(guestFiles, c.operations.serveFile)
	return mux
}

// serveDatastore serves files of datastores to whoever has a session.
func (c *center) serveDatastore(w http.ResponseWriter, r *http.Request) {
	if c.sessions.check(r) == "" {
		http.Error(w, "log in first", http.StatusUnauthorized)
		return
	}
	c.service.ServeDatastore(w, r)
}

func serveVersions(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?>
<namespaces version="1.0"><namespace><name>urn:vim25</name><version>6.5</version>
<priorVersions><version>6.0</version><version>5.5</version></priorVersions></namespace></namespaces>`)
}

// serveCall has a call of SOAP counted, delayed, failed, cut or answered.
func (c *center) serveCall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	// The API's name of the type is the latter; pyvmomi writes the former where any type may be, and vCenter reads both.
	body = bytes.ReplaceAll(body, []byte(`xsi:type="ManagedObject"`), []byte(`xsi:type="ManagedObjectReference"`))
	call, err := readCall(body)
	if err != nil {
		log.Printf("no call: %s", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rule := c.rules.apply(call)
	if rule.Hang {
		select {
		case <-rule.released:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	select {
	case <-rule.released: // nil without a rule, which blocks
	case <-time.After(seconds(rule.Delay)):
	}

	answer := httptest.NewRecorder()
	user := c.sessions.check(r)
	c.answer(answer, r, body, call, user, rule)
	c.sessions.learn(answer.Header())
	answer = c.pages.first(call, body, answer)
	if rule.Cut {
		panic(http.ErrAbortHandler)
	}
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
}

func (c *center) answer(w http.ResponseWriter, r *http.Request, body []byte, call *call, user string, rule rule) {
	defer func() {
		// The simulator panics where it can't find what a request names, and where a property that is fetched is not set.
		bug := recover()
		if bug != nil && call.name == "Fetch" {
			writeResponse(w, call.name, &struct{}{})
		} else if bug != nil {
			log.Printf("%s: %v\n%s", call.name, bug, debug.Stack())
			writeFault(w, &types.SystemError{Reason: "the simulator can't do this"}, "A general system error occurred.")
		}
	}()
	own := c.methods[call.name]
	if rule.Fault != "" {
		own = c.failing(rule)
	}
	if own == nil || user == "" && rule.Fault == "" { // the simulator says what may be called without a session
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.URL.Path = vim25.Path
		c.service.ServeSDK(w, r)
		return
	}
	if err := call.decode(body); err != nil {
		log.Printf("no call: %s", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if simulator.Map.Get(call.this) == nil {
		writeFault(w, &types.ManagedObjectNotFound{Obj: call.this}, "The object has already been deleted.")
		return
	}
	fault := c.rights.refusal(call)
	var response interface{}
	if fault == nil {
		response, fault = own(c.context(c.User), call)
	}
	if fault != nil {
		text := rule.Message
		if text == "" {
			text = localized(fault).LocalizedMessage
		}
		writeFault(w, fault, text)
		return
	}
	writeResponse(w, call.name, response)
}

// failing answers as a rule says: a method with a fault, or a task that fails on its way without having done anything.
func (c *center) failing(rule rule) method {
	return func(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
		fault := newFault(rule.Fault, call.this)
		if !strings.HasSuffix(call.name, "_Task") || rule.At < 0 {
			return nil, fault
		}
		ref := c.tasks.start(call, nil, func(work *work) (types.AnyType, types.BaseMethodFault) {
			if !work.progress(seconds(rule.Seconds), rule.At) {
				return nil, &types.RequestCanceled{}
			}
			return nil, fault
		})
		return &started{Returnval: ref}, nil
	}
}

// context is what the simulator's methods get that are called from here.
func (c *center) context(user string) *simulator.Context {
	return &simulator.Context{Context: context.Background(), Map: simulator.Map, Session: &simulator.Session{
		UserSession: types.UserSession{UserName: user}, Registry: simulator.NewRegistry(),
	}}
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}
