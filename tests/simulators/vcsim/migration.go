package main

import (
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// pace is how migrations go.
type pace struct {
	Seconds float64 `json:"seconds"` // from its start to the VM's arrival
	Stun    float64 `json:"stun"`    // how long the guest stands still at the end
	AtOnce  int     `json:"at_once"` // more than that are queued
}

// migrations are those of VMs between hosts and datastores, which take their time, may be cancelled, and are told in
// events.
type migrations struct {
	center *center

	mutex        sync.Mutex
	pace         pace
	gate         *gate
	moving       map[types.ManagedObjectReference]types.ManagedObjectReference // VMs, and the tasks that move them
	incompatible map[string]bool                                               // hosts by name whose processors are of another kind
}

// sentences are what events of migrations say. The simulator's own can't be parsed by its own templates.
var sentences = map[string]string{
	"VmBeingHotMigratedEvent": "Migrating {{.Vm.Name}} from {{.Host.Name}} to {{.DestHost.Name}}",
	"VmMigratedEvent":         "Migration of {{.Vm.Name}} from {{.SourceHost.Name}} to {{.Host.Name}} completed",
	"DrsVmMigratedEvent":      "DRS migrated {{.Vm.Name}} from {{.SourceHost.Name}} to {{.Host.Name}}",
	"VmRelocatedEvent":        "{{.Vm.Name}} was relocated on {{.Host.Name}}",
	"VmFailedMigrateEvent":    "Cannot migrate {{.Vm.Name}} from {{.Host.Name}} to {{.DestHost.Name}}",
	"VmRenamedEvent":          "Renamed {{.OldName}} to {{.NewName}}",
}

// mendSentences puts them in.
func mendSentences(manager *simulator.EventManager) {
	infos := append([]types.EventDescriptionEventDetail{}, manager.Description.EventInfo...)
	for at := range infos {
		if sentence, ours := sentences[infos[at].Key]; ours {
			infos[at].FullFormat = sentence
		}
	}
	manager.Description.EventInfo = infos
}

func newMigrations(c *center) *migrations {
	mendSentences(simulator.Map.EventManager())
	m := &migrations{
		center:       c,
		moving:       make(map[types.ManagedObjectReference]types.ManagedObjectReference),
		incompatible: make(map[string]bool),
	}
	m.setPace(pace{Seconds: 0.3, Stun: 0.02, AtOnce: 4})
	return m
}

func (m *migrations) setPace(wanted pace) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.pace = wanted
	m.gate = newGate(wanted.AtOnce)
}

func (m *migrations) methods() map[string]method {
	return map[string]method{
		"RelocateVM_Task":                  onVM(m.relocate),
		"MigrateVM_Task":                   onVM(m.migrate),
		"CheckRelocate_Task":               m.checkRelocate,
		"CheckMigrate_Task":                m.checkMigrate,
		"QueryVMotionCompatibilityEx_Task": m.queryCompatibility,
	}
}

func (m *migrations) relocate(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	return m.begin(ctx, call, vm, call.body.(*types.RelocateVM_Task).Spec)
}

func (m *migrations) migrate(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.MigrateVM_Task)
	return m.begin(ctx, call, vm, types.VirtualMachineRelocateSpec{Host: request.Host, Pool: request.Pool})
}

// begin starts the task of a migration.
func (m *migrations) begin(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine, spec types.VirtualMachineRelocateSpec,
) (interface{}, types.BaseMethodFault) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if other, moving := m.moving[vm.Self]; moving {
		return nil, &types.TaskInProgress{Task: other}
	}
	how := m.pace
	ref := m.center.tasks.start(call, m.gate, func(work *work) (types.AnyType, types.BaseMethodFault) {
		defer func() {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			delete(m.moving, vm.Self)
		}()
		return nil, m.carryOut(ctx, vm, spec, how, work)
	})
	m.moving[vm.Self] = ref
	return &started{Returnval: ref}, nil
}

// carryOut moves a VM: its memory while it runs, then, after a moment in which it stands still, the VM. Before that it can
// be cancelled.
func (m *migrations) carryOut(
	ctx *simulator.Context, vm *simulator.VirtualMachine, spec types.VirtualMachineRelocateSpec, how pace, work *work,
) types.BaseMethodFault {
	if work.ctx.Err() != nil {
		return &types.RequestCanceled{} // while it was queued
	}
	var faults []types.BaseMethodFault
	simulator.Map.WithLock(vm, func() { faults = m.obstacles(vm, spec) })
	if len(faults) > 0 {
		return faults[0]
	}
	source, running := hostOf(vm.Runtime.Host), vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
	destination := source
	if spec.Host != nil {
		destination = hostOf(spec.Host)
	}
	if running && destination != source {
		m.post(ctx, &types.VmBeingHotMigratedEvent{VmEvent: eventOf(vm, source), DestHost: *argumentOf(destination)})
	}
	if !work.progress(seconds(how.Seconds), 0.99) {
		fault := &types.RequestCanceled{}
		m.post(ctx, &types.VmFailedMigrateEvent{
			VmEvent: eventOf(vm, source), DestHost: *argumentOf(destination), Reason: localized(fault),
		})
		return fault
	}
	if running && destination != source {
		began := time.Now()
		m.center.guests.stun(vm.Self, how.Stun)
		logStun(vm, time.Since(began))
	}
	simulator.Map.WithLock(vm, func() { move(vm, spec) })
	if destination != source {
		m.post(ctx, &types.VmMigratedEvent{VmEvent: eventOf(vm, destination), SourceHost: *argumentOf(source)})
	} else {
		relocated := types.VmRelocatedEvent{SourceHost: *argumentOf(source)}
		relocated.VmEvent = eventOf(vm, destination)
		m.post(ctx, &relocated)
	}
	return nil
}

// byDRS moves a VM as DRS does: nobody has asked, and the event says so.
func (m *migrations) byDRS(vm *simulator.VirtualMachine, destination *simulator.HostSystem) {
	source := hostOf(vm.Runtime.Host)
	ref := destination.Self
	simulator.Map.WithLock(vm, func() { move(vm, types.VirtualMachineRelocateSpec{Host: &ref}) })
	event := types.DrsVmMigratedEvent{}
	event.VmEvent, event.SourceHost = eventOf(vm, destination), *argumentOf(source)
	m.post(m.center.context(""), &event)
}

func (m *migrations) post(ctx *simulator.Context, event types.BaseEvent) {
	manager := simulator.Map.EventManager()
	locked(ctx, manager, func() { manager.PostEvent(ctx, &types.PostEvent{EventToPost: event}) })
}

// obstacles are why a VM can't be migrated.
func (m *migrations) obstacles(
	vm *simulator.VirtualMachine, spec types.VirtualMachineRelocateSpec,
) (faults []types.BaseMethodFault) {
	source, destination := hostOf(vm.Runtime.Host), hostOf(vm.Runtime.Host)
	if spec.Host != nil {
		destination = hostOf(spec.Host)
	}
	if destination == nil {
		return []types.BaseMethodFault{&types.InvalidArgument{InvalidProperty: "spec.host"}}
	}
	for _, host := range []*simulator.HostSystem{source, destination} {
		if fault := unable(host); fault != nil {
			return []types.BaseMethodFault{fault}
		}
	}
	if computeOf(source) != computeOf(destination) && (spec.Pool == nil || !isIn(*spec.Pool, computeOf(destination))) {
		faults = append(faults, &types.InvalidArgument{InvalidProperty: "spec.pool"})
	}
	stores := vm.Datastore
	if spec.Datastore != nil {
		stores = []types.ManagedObjectReference{*spec.Datastore}
	}
	for _, store := range stores {
		if simulator.FindReference(destination.Datastore, store) == nil {
			name := nameOf(simulator.Map.Get(store))
			faults = append(faults, &types.InaccessibleDatastore{
				InvalidDatastore: types.InvalidDatastore{Datastore: &store, Name: name},
			})
		}
	}
	running := vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
	if !running || source == destination {
		return faults
	}
	m.mutex.Lock()
	strange := m.incompatible[source.Name] != m.incompatible[destination.Name]
	m.mutex.Unlock()
	if strange {
		faults = append(faults, &types.CpuIncompatible{Host: &destination.Self})
	}
	for _, host := range []*simulator.HostSystem{source, destination} {
		if !canVMotion(host) {
			faults = append(faults, &types.VMotionNotConfigured{})
		}
	}
	for _, device := range vm.Config.Hardware.Device {
		switch device.(type) {
		case *types.VirtualPCIPassthrough, *types.VirtualSriovEthernetCard:
			faults = append(faults, &types.DeviceNotSupported{Device: nicName(device)})
		}
	}
	for _, network := range vm.Network {
		if simulator.FindReference(destination.Network, network) == nil {
			faults = append(faults, &types.CannotAccessNetwork{
				CannotAccessVmDevice: types.CannotAccessVmDevice{Device: "Network adapter 1"},
				Network:              &network,
			})
		}
	}
	return faults
}

func nicName(device types.BaseVirtualDevice) string {
	if info := device.GetVirtualDevice().DeviceInfo; info != nil {
		return info.GetDescription().Label
	}
	return "device"
}

func isIn(pool types.ManagedObjectReference, compute *mo.ComputeResource) bool {
	found, is := simulator.Map.Get(pool).(*simulator.ResourcePool)
	return is && found.Owner == compute.Self
}

// canVMotion tells whether a host has an interface for vMotion.
func canVMotion(host *simulator.HostSystem) bool {
	if host.Config.VirtualNicManagerInfo == nil {
		return false
	}
	for _, config := range host.Config.VirtualNicManagerInfo.NetConfig {
		if config.NicType == string(types.HostVirtualNicManagerNicTypeVmotion) && len(config.SelectedVnic) > 0 {
			return true
		}
	}
	return false
}

// move puts a VM onto another host, into another pool, onto another datastore, as far as each is named.
func move(vm *simulator.VirtualMachine, spec types.VirtualMachineRelocateSpec) {
	var changes []types.PropertyChange
	if spec.Host != nil {
		from, to := hostOf(vm.Runtime.Host), hostOf(spec.Host)
		simulator.Map.RemoveReference(from, &from.Vm, vm.Self)
		simulator.Map.AppendReference(to, &to.Vm, vm.Self)
		changes = append(changes,
			types.PropertyChange{Name: "runtime.host", Val: *spec.Host},
			types.PropertyChange{Name: "summary.runtime.host", Val: *spec.Host},
		)
	}
	if spec.Pool != nil {
		from, _ := simulator.Map.Get(*vm.ResourcePool).(*simulator.ResourcePool)
		to, _ := simulator.Map.Get(*spec.Pool).(*simulator.ResourcePool)
		if from != nil && to != nil {
			simulator.Map.RemoveReference(from, &from.Vm, vm.Self)
			simulator.Map.AppendReference(to, &to.Vm, vm.Self)
		}
		changes = append(changes, types.PropertyChange{Name: "resourcePool", Val: *spec.Pool})
	}
	if spec.Datastore != nil {
		for _, ref := range vm.Datastore {
			from := simulator.Map.Get(ref).(*simulator.Datastore)
			simulator.Map.RemoveReference(from, &from.Vm, vm.Self)
		}
		to := simulator.Map.Get(*spec.Datastore).(*simulator.Datastore)
		simulator.Map.AppendReference(to, &to.Vm, vm.Self)
		changes = append(changes, types.PropertyChange{Name: "datastore", Val: []types.ManagedObjectReference{*spec.Datastore}})
	}
	simulator.Map.Update(vm, changes)
}

func eventOf(vm *simulator.VirtualMachine, host *simulator.HostSystem) types.VmEvent {
	return types.VmEvent{Event: types.Event{
		CreatedTime: time.Now(),
		Host:        argumentOf(host),
		Vm:          &types.VmEventArgument{EntityEventArgument: types.EntityEventArgument{Name: vm.Name}, Vm: vm.Self},
	}}
}

func argumentOf(host *simulator.HostSystem) *types.HostEventArgument {
	return &types.HostEventArgument{EntityEventArgument: types.EntityEventArgument{Name: host.Name}, Host: host.Self}
}
