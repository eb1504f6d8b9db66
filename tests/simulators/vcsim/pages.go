package main

import (
	"bytes"
	"log"
	"net/http/httptest"
	"sync"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// pages are what is left of answers that a client wants in parts (RetrieveOptions.maxObjects); the simulator always gives
// all at once.
type pages struct {
	mutex sync.Mutex
	left  map[string]rest // by token
}

type rest struct {
	objects []types.ObjectContent
	size    int
}

func newPages() *pages {
	return &pages{left: make(map[string]rest)}
}

func (p *pages) methods() map[string]method {
	return map[string]method{
		"ContinueRetrievePropertiesEx": p.next,
		"CancelRetrievePropertiesEx":   p.cancel,
	}
}

// first cuts an answer to RetrievePropertiesEx down to its first page, if it has several.
func (p *pages) first(call *call, request []byte, answer *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	if call.name != "RetrievePropertiesEx" || answer.Code != 200 || call.decode(request) != nil {
		return answer
	}
	size := int(call.body.(*types.RetrievePropertiesEx).Options.MaxObjects)
	if size <= 0 || bytes.Count(answer.Body.Bytes(), []byte("<objects>")) <= size {
		return answer
	}
	var whole struct {
		Body struct {
			Response types.RetrievePropertiesExResponse `xml:"RetrievePropertiesExResponse"`
		}
	}
	decoder := xml.NewDecoder(answer.Body)
	decoder.TypeFunc = types.TypeFunc()
	if err := decoder.Decode(&whole); err != nil {
		log.Panicf("the simulator's answer can't be read: %s", err)
	}
	page := httptest.NewRecorder()
	result := p.page(rest{objects: whole.Body.Response.Returnval.Objects, size: size})
	writeResponse(page, call.name, &types.RetrievePropertiesExResponse{Returnval: &result})
	return page
}

// page gives the next objects of what is left, and keeps the others.
func (p *pages) page(left rest) types.RetrieveResult {
	if len(left.objects) <= left.size {
		return types.RetrieveResult{Objects: left.objects}
	}
	token := uuid.New().String()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.left[token] = rest{objects: left.objects[left.size:], size: left.size}
	return types.RetrieveResult{Objects: left.objects[:left.size], Token: token}
}

func (p *pages) next(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	left, known := p.take(call.body.(*types.ContinueRetrievePropertiesEx).Token)
	if !known {
		return nil, &types.InvalidProperty{Name: "token"}
	}
	return &types.ContinueRetrievePropertiesExResponse{Returnval: p.page(left)}, nil
}

func (p *pages) cancel(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	if _, known := p.take(call.body.(*types.CancelRetrievePropertiesEx).Token); !known {
		return nil, &types.InvalidProperty{Name: "token"}
	}
	return &types.CancelRetrievePropertiesExResponse{}, nil
}

func (p *pages) take(token string) (rest, bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	left, known := p.left[token]
	delete(p.left, token)
	return left, known
}

// forget drops all, as a restart does.
func (p *pages) forget() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.left = make(map[string]rest)
}
