package main

import (
	"context"
	"log"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// tick is how often a task tells its progress.
const tick = 20 * time.Millisecond

// tasks are those that take their time. The simulator's own have ended when the client learns of them.
type tasks struct {
	user string

	mutex   sync.Mutex
	running map[types.ManagedObjectReference]context.CancelFunc
}

func newTasks(user string) *tasks {
	t := &tasks{user: user, running: make(map[types.ManagedObjectReference]context.CancelFunc)}
	simulator.Map.AddHandler(t)
	return t
}

// Reference, PutObject, UpdateObject and RemoveObject make it a handler of the simulator's registry.
func (t *tasks) Reference() types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: "Tasks", Value: "tasks"}
}

// PutObject is called for new objects. The simulator says of tasks of managers that the manager is their entity, which is
// none, and clients can't read that.
func (t *tasks) PutObject(object mo.Reference) {
	task, is := object.(*simulator.Task)
	if !is || task.Info.Entity == nil {
		return
	}
	if _, is := simulator.Map.Get(*task.Info.Entity).(mo.Entity); !is {
		task.Info.Entity, task.Info.EntityName = nil, ""
	}
}

// UpdateObject is called when properties of an object have changed.
func (t *tasks) UpdateObject(mo.Reference, []types.PropertyChange) {}

// RemoveObject is called before an object goes.
func (t *tasks) RemoveObject(types.ManagedObjectReference) {}

// work is what a running task is told and tells.
type work struct {
	ctx  context.Context
	task *simulator.Task
}

// start begins the task of a call. With a gate it is queued until the gate lets it in; one that is cancelled meanwhile finds
// its context done.
func (t *tasks) start(
	call *call,
	gate *gate,
	run func(*work) (types.AnyType, types.BaseMethodFault),
) types.ManagedObjectReference {
	task := simulator.CreateTask(call.this, call.name, nil)
	task.Info.Name = call.name
	task.Info.DescriptionId = call.this.Type + "." + operation(call.name)
	task.Info.Cancelable = true
	task.Info.Reason = &types.TaskReasonUser{UserName: t.user}
	if task.Info.Entity != nil {
		task.Info.EntityName = nameOf(simulator.Map.Get(call.this))
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.mutex.Lock()
	t.running[task.Self] = cancel
	t.mutex.Unlock()

	one := &work{ctx: ctx, task: task}
	go func() {
		defer cancel()
		if gate.enter(ctx) {
			defer gate.leave()
			one.set("info.state", types.TaskInfoStateRunning, "info.startTime", time.Now())
		}
		one.end(one.safely(run))
		t.mutex.Lock()
		delete(t.running, task.Self)
		t.mutex.Unlock()
	}()
	return task.Self
}

// safely turns a panic of the simulator, as where it can't find what a request names, into a fault of the task.
func (w *work) safely(run func(*work) (types.AnyType, types.BaseMethodFault)) (result types.AnyType, fault types.BaseMethodFault) {
	defer func() {
		if bug := recover(); bug != nil {
			log.Printf("%s: %v\n%s", w.task.Info.Name, bug, debug.Stack())
			fault = &types.SystemError{Reason: "the simulator can't do this"}
		}
	}()
	return run(w)
}

// progress lets the time pass that a part of the work takes, from 0 to a share of it, and says how far it is. It ends
// early, with false, when the task is cancelled.
func (w *work) progress(whole time.Duration, share float64) bool {
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
	_, cancelled := fault.(*types.RequestCanceled)
	w.set("info.error", localized(fault), "info.completeTime", time.Now(),
		"info.cancelable", false, "info.cancelled", cancelled, "info.state", types.TaskInfoStateError)
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
	manager := simulator.Map.Get(*content().TaskManager).(*simulator.TaskManager)
	for ref := range t.running {
		simulator.Map.Remove(ref)
		manager.Lock()
		simulator.RemoveReference(&manager.RecentTask, ref)
		manager.Unlock()
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

// operation is how TaskInfo.descriptionId names a method.
func operation(method string) string {
	switch method {
	case "CreateVM_Task":
		return "createVm"
	case "ReconfigVM_Task":
		return "reconfigure"
	}
	name := strings.TrimSuffix(strings.TrimSuffix(method, "_Task"), "VM")
	return strings.ToLower(name[:1]) + name[1:]
}
