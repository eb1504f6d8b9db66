package main

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// tick is how often a task tells its progress.
const tick = 20 * time.Millisecond

// tasks are those that take their time. The simulator's own have ended when the client learns of them.
type tasks struct {
	mutex   sync.Mutex
	running map[types.ManagedObjectReference]context.CancelFunc
}

func newTasks() *tasks {
	return &tasks{running: make(map[types.ManagedObjectReference]context.CancelFunc)}
}

// work is what a running task is told and tells.
type work struct {
	ctx  context.Context
	task *simulator.Task
}

// start begins a task on an object. With a gate it is queued until the gate lets it in.
func (t *tasks) start(
	entity types.ManagedObjectReference,
	name string,
	gate *gate,
	run func(*work) (types.AnyType, types.BaseMethodFault),
) types.ManagedObjectReference {
	task := simulator.CreateTask(entity, name, nil)
	task.Info.Cancelable = true
	if named := simulator.Map.Get(entity); named != nil {
		task.Info.EntityName = nameOf(named)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.mutex.Lock()
	t.running[task.Self] = cancel
	t.mutex.Unlock()

	one := &work{ctx: ctx, task: task}
	go func() {
		defer cancel()
		if !gate.enter(ctx) {
			one.end(nil, &types.RequestCanceled{})
			return
		}
		defer gate.leave()
		one.set("info.state", types.TaskInfoStateRunning, "info.startTime", time.Now())
		one.end(run(one))
		t.mutex.Lock()
		delete(t.running, task.Self)
		t.mutex.Unlock()
	}()
	return task.Self
}

// progress lets the time pass that a part of the work takes, from 0 to a share of it, and says how far it is. It ends
// early, with false, when the task is cancelled.
func (w *work) progress(whole time.Duration, share float64, each func(done float64)) bool {
	began := time.Now()
	for {
		done := 1.0
		if whole > 0 {
			done = float64(time.Since(began)) / float64(whole)
		}
		if done > share {
			done = share
		}
		w.set("info.progress", int32(done*100))
		if each != nil {
			each(done)
		}
		if done >= share {
			return w.ctx.Err() == nil
		}
		select {
		case <-w.ctx.Done():
			return false
		case <-time.After(tick):
		}
	}
}

func (w *work) end(result types.AnyType, fault types.BaseMethodFault) {
	if fault == nil {
		w.set("info.result", result, "info.progress", nil, "info.completeTime", time.Now(),
			"info.cancelable", false, "info.state", types.TaskInfoStateSuccess)
		return
	}
	kind := reflect.TypeOf(fault).Elem().Name()
	told := types.LocalizedMethodFault{Fault: fault, LocalizedMessage: "The operation failed: " + kind}
	w.set("info.error", told, "info.completeTime", time.Now(),
		"info.cancelable", false, "info.cancelled", kind == "RequestCanceled", "info.state", types.TaskInfoStateError)
}

// set changes properties of the task, given as name and value in turn, and tells clients that wait for them.
func (w *work) set(pairs ...interface{}) {
	var changes []types.PropertyChange
	for at := 0; at < len(pairs); at += 2 {
		changes = append(changes, types.PropertyChange{Name: pairs[at].(string), Val: pairs[at+1]})
	}
	simulator.Map.WithLock(w.task, func() { simulator.Map.Update(w.task, changes) })
}

// cancel is CancelTask: it returns at once, and the task ends with RequestCanceled once it has cleaned up.
func (t *tasks) cancel(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	stop, running := t.running[call.this]
	if !running {
		return nil, &types.InvalidState{}
	}
	stop()
	return &types.CancelTaskResponse{}, nil
}

// forget makes all tasks unknown, as a restart does. What they do on the hosts goes on.
func (t *tasks) forget() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for ref := range t.running {
		simulator.Map.Remove(ref)
	}
	t.running = make(map[types.ManagedObjectReference]context.CancelFunc)
}

// gate lets so many in at once.
type gate struct{ places chan struct{} }

func newGate(places int) *gate {
	return &gate{places: make(chan struct{}, places)}
}

func (g *gate) enter(ctx context.Context) bool {
	if g == nil {
		return true
	}
	select {
	case g.places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *gate) leave() {
	if g != nil {
		<-g.places
	}
}
