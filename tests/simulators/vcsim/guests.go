package main

import (
	"log"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// guests are what VMs boot: machines of the world, which the process of the tests keeps. They follow the power state of
// their VMs, whoever changes it.
type guests struct {
	center *center

	mutex     sync.Mutex
	all       map[types.ManagedObjectReference]*guest
	customise map[types.ManagedObjectReference]*types.CustomizationSpec
	told      map[string]told // what Tools tell instead of the truth, by names of VMs
}

// guest is the machine of one VM. What is wanted of it is set at once, what it is follows.
type guest struct {
	vm types.ManagedObjectReference

	wanted power // under the mutex of guests

	changing sync.Mutex // one change at a time; guards what follows
	is       power
	machine  *machine
	programs *programs
}

// power is what a VM does; boots tells one start from the next, so that a reset is a new boot.
type power struct {
	state types.VirtualMachinePowerState
	boots int
}

// machine is a guest that runs, as the world knows it.
type machine struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Enter   []string `json:"enter"` // what to put before a command line, to run it there
	Root    string   `json:"root"`  // its file system as seen from here
}

func newGuests(c *center) *guests {
	g := &guests{
		center:    c,
		all:       make(map[types.ManagedObjectReference]*guest),
		customise: make(map[types.ManagedObjectReference]*types.CustomizationSpec),
		told:      make(map[string]told),
	}
	simulator.Map.AddHandler(g)
	return g
}

// Reference, PutObject, UpdateObject and RemoveObject make it a handler of the simulator's registry, which calls them
// with the object locked. So what takes time is done beside.
func (g *guests) Reference() types.ManagedObjectReference {
	return types.ManagedObjectReference{Type: "Guests", Value: "guests"}
}

// PutObject is called for new objects; a new VM is powered off.
func (g *guests) PutObject(mo.Reference) {}

// UpdateObject is called when properties of an object have changed.
func (g *guests) UpdateObject(object mo.Reference, changed []types.PropertyChange) {
	vm, is := object.(*mo.VirtualMachine)
	if !is {
		return
	}
	for _, change := range changed {
		if change.Name != "runtime.powerState" {
			continue
		}
		if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOff {
			simulator.Map.Update(vm, changes(nil, vm, told{Tools: "not-running"}))
		}
		g.follow(vm.Self, vm.Runtime.PowerState)
	}
}

// RemoveObject is called before an object goes.
func (g *guests) RemoveObject(ref types.ManagedObjectReference) {
	if ref.Type != "VirtualMachine" {
		return
	}
	g.mutex.Lock()
	known := g.all[ref] != nil
	delete(g.customise, ref)
	g.mutex.Unlock()
	if known {
		g.follow(ref, types.VirtualMachinePowerStatePoweredOff)
	}
}

func (g *guests) follow(ref types.ManagedObjectReference, state types.VirtualMachinePowerState) {
	g.mutex.Lock()
	one := g.all[ref]
	if one == nil {
		one = &guest{vm: ref, is: power{state: types.VirtualMachinePowerStatePoweredOff}}
		one.wanted = one.is
		g.all[ref] = one
	}
	if one.wanted.state == types.VirtualMachinePowerStatePoweredOff && state != one.wanted.state {
		one.wanted.boots++
	}
	one.wanted.state = state
	g.mutex.Unlock()
	go g.settle(one)
}

// settle makes a guest what is wanted of it.
func (g *guests) settle(one *guest) {
	one.changing.Lock()
	defer one.changing.Unlock()
	g.mutex.Lock()
	wanted := one.wanted
	g.mutex.Unlock()
	if one.is == wanted {
		return
	}
	on, suspended := types.VirtualMachinePowerStatePoweredOn, types.VirtualMachinePowerStateSuspended
	if one.machine != nil && (one.is.boots != wanted.boots || wanted.state == types.VirtualMachinePowerStatePoweredOff) {
		g.ask("stop", one.machine.Name)
		one.machine, one.programs = nil, nil
	}
	switch {
	case one.machine == nil && wanted.state == on:
		g.boot(one)
	case one.machine != nil && wanted.state == suspended && one.is.state == on:
		g.ask("pause", one.machine.Name)
	case one.machine != nil && wanted.state == on && one.is.state == suspended:
		g.ask("resume", one.machine.Name)
	}
	one.is = wanted
	if wanted.state != types.VirtualMachinePowerStatePoweredOff {
		g.tell(one)
	}
}

func (g *guests) boot(one *guest) {
	vm, is := simulator.Map.Get(one.vm).(*simulator.VirtualMachine)
	if !is || !g.center.World {
		return
	}
	var asked bootRequest
	simulator.Map.WithLock(vm, func() { asked = newBootRequest(vm, g.customisation(one.vm)) })
	if asked.NicModel == "" {
		return
	}
	var booted machine
	if err := g.center.link.ask("boot", asked, &booted); err != nil {
		log.Printf("%s does not boot: %s", vm.Name, err)
		return
	}
	one.machine, one.programs = &booted, newPrograms(&booted)
}

func (g *guests) ask(do, name string) {
	if err := g.center.link.ask(do, name, nil); err != nil {
		log.Print(err)
	}
}

// stun freezes the guest of a VM for a moment, as a vMotion does at its end.
func (g *guests) stun(vm types.ManagedObjectReference, moment float64) {
	one := g.of(vm)
	if one == nil {
		return
	}
	one.changing.Lock()
	defer one.changing.Unlock()
	if one.machine != nil && one.is.state == types.VirtualMachinePowerStatePoweredOn {
		with := map[string]interface{}{"name": one.machine.Name, "seconds": moment}
		if err := g.center.link.ask("stun", with, nil); err != nil {
			log.Print(err)
		}
	}
}

func (g *guests) of(vm types.ManagedObjectReference) *guest {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.all[vm]
}

func (g *guests) customisation(vm types.ManagedObjectReference) *types.CustomizationSpec {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.customise[vm]
}

func (g *guests) setCustomisation(vm types.ManagedObjectReference, spec *types.CustomizationSpec) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.customise[vm] = spec
}
