package main

import (
	"encoding/json"
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// orders are what the tests may ask for. Objects are named by their names or by the values of their references.
func (c *center) orders() map[string]order {
	return map[string]order{
		"rule":            with(func(one rule) (interface{}, error) { return nil, c.rules.add(one) }),
		"clear":           with(func(struct{}) (interface{}, error) { c.rules.clear(); return nil, nil }),
		"calls":           with(func(struct{}) (interface{}, error) { return c.rules.calls(), nil }),
		"forget_sessions": with(func(struct{}) (interface{}, error) { c.sessions.forget(); return nil, nil }),
		"session_idle":    with(func(idle float64) (interface{}, error) { c.sessions.expire(seconds(idle)); return nil, nil }),
		"restart":         with(func(closed float64) (interface{}, error) { return nil, c.restart(seconds(closed)) }),
		"rights":          with(func(missing map[string][]string) (interface{}, error) { c.rights.set(missing); return nil, nil }),
		"pace":            with(func(wanted pace) (interface{}, error) { c.migrations.setPace(wanted); return nil, nil }),
		"guest":           with(c.orderGuest),
		"host":            with(c.orderHost),
		"datastore":       with(c.orderDatastore),
		"drs":             with(c.orderDRS),
		"rename":          with(c.orderRename),
		"remove":          with(c.orderRemove),
		"vm":              with(c.orderVM),
	}
}

// with makes an order of a function of what comes with it.
func with[T any](do func(T) (interface{}, error)) order {
	return func(text json.RawMessage) (interface{}, error) {
		var value T
		if err := json.Unmarshal(text, &value); err != nil {
			return nil, err
		}
		return do(value)
	}
}

// orderGuest has Tools of a VM tell something; without `told` the truth again.
func (c *center) orderGuest(order struct {
	VM   string `json:"vm"`
	Told *told  `json:"told"`
}) (interface{}, error) {
	c.guests.retell(order.VM, order.Told)
	return nil, nil
}

// orderHost changes the state of a host; what is left out stays.
func (c *center) orderHost(order struct {
	Name         string `json:"name"`
	Connection   string `json:"connection"` // connected, disconnected, notResponding
	Maintenance  *bool  `json:"maintenance"`
	Incompatible *bool  `json:"incompatible"` // its processors are of another kind
	VMotion      *bool  `json:"vmotion"`      // whether it has an interface for it
}) (interface{}, error) {
	host, err := hostNamed(order.Name)
	if err != nil {
		return nil, err
	}
	var changes []types.PropertyChange
	if order.Connection != "" {
		state := types.HostSystemConnectionState(order.Connection)
		changes = append(changes, types.PropertyChange{Name: "runtime.connectionState", Val: state})
	}
	if order.Maintenance != nil {
		changes = append(changes, types.PropertyChange{Name: "runtime.inMaintenanceMode", Val: *order.Maintenance})
	}
	if order.VMotion != nil {
		changes = append(changes, types.PropertyChange{Name: "config.virtualNicManagerInfo", Val: vMotion(*order.VMotion)})
	}
	if order.Incompatible != nil {
		c.migrations.mutex.Lock()
		c.migrations.incompatible[host.Name] = *order.Incompatible
		c.migrations.mutex.Unlock()
	}
	simulator.Map.WithLock(host, func() { simulator.Map.Update(host, changes) })
	return nil, nil
}

// orderDatastore sets what is free on a datastore; what doesn't fit is refused from then on.
func (c *center) orderDatastore(order struct {
	Name string `json:"name"`
	Free int64  `json:"free"`
}) (interface{}, error) {
	store, is := find("Datastore", order.Name).(*simulator.Datastore)
	if !is {
		return nil, fmt.Errorf("there is no datastore %s", order.Name)
	}
	simulator.Map.WithLock(store, func() {
		simulator.Map.Update(store, []types.PropertyChange{{Name: "summary.freeSpace", Val: order.Free}})
	})
	return nil, nil
}

// orderDRS moves a VM as DRS does.
func (c *center) orderDRS(order struct {
	VM   string `json:"vm"`
	Host string `json:"host"`
}) (interface{}, error) {
	vm, err := vmNamed(order.VM)
	if err != nil {
		return nil, err
	}
	host, err := hostNamed(order.Host)
	if err != nil {
		return nil, err
	}
	c.migrations.byDRS(vm, host)
	return nil, nil
}

// orderRename renames a VM as somebody else does.
func (c *center) orderRename(order struct {
	VM   string `json:"vm"`
	Name string `json:"name"`
}) (interface{}, error) {
	vm, err := vmNamed(order.VM)
	if err != nil {
		return nil, err
	}
	old := vm.Name
	simulator.Map.WithLock(vm, func() {
		simulator.Map.Update(vm, []types.PropertyChange{
			{Name: "name", Val: order.Name}, {Name: "config.name", Val: order.Name},
			{Name: "summary.config.name", Val: order.Name},
		})
	})
	event := types.VmRenamedEvent{OldName: old, NewName: order.Name}
	event.VmEvent = eventOf(vm, hostOf(vm.Runtime.Host))
	c.migrations.post(c.context("somebody@vsphere.local"), &event)
	return nil, nil
}

// orderRemove has a VM be gone at once, as when somebody else removes it.
func (c *center) orderRemove(name string) (interface{}, error) {
	vm, err := vmNamed(name)
	if err != nil {
		return nil, err
	}
	ctx := c.context("somebody@vsphere.local")
	locked(ctx, vm, func() {
		vm.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOff
		vm.UnregisterVM(ctx, &types.UnregisterVM{This: vm.Self})
	})
	return nil, nil
}

// orderVM tells of a VM: its reference, where it is, whether it runs, its guest's address.
func (c *center) orderVM(name string) (interface{}, error) {
	vm, err := vmNamed(name)
	if err != nil {
		return nil, err
	}
	told := make(map[string]interface{})
	simulator.Map.WithLock(vm, func() {
		told["id"] = vm.Self.Value
		told["host"] = hostOf(vm.Runtime.Host).Name
		told["power"] = vm.Runtime.PowerState
		told["address"] = vm.Guest.IpAddress
	})
	return told, nil
}

func vmNamed(name string) (*simulator.VirtualMachine, error) {
	vm, is := find("VirtualMachine", name).(*simulator.VirtualMachine)
	if !is {
		return nil, fmt.Errorf("there is no VM %s", name)
	}
	return vm, nil
}

func hostNamed(name string) (*simulator.HostSystem, error) {
	host, is := find("HostSystem", name).(*simulator.HostSystem)
	if !is {
		return nil, fmt.Errorf("there is no host %s", name)
	}
	return host, nil
}

// vMotion is the part of a host's configuration that says which interface is for it.
func vMotion(there bool) *types.HostVirtualNicManagerInfo {
	config := types.VirtualNicManagerNetConfig{
		NicType:            string(types.HostVirtualNicManagerNicTypeVmotion),
		MultiSelectAllowed: true,
		CandidateVnic: []types.HostVirtualNic{{
			Device: "vmk1", Key: "vmotion.key-vim.host.VirtualNic-vmk1", Portgroup: "vMotion",
		}},
	}
	if there {
		config.SelectedVnic = []string{config.CandidateVnic[0].Key}
	}
	return &types.HostVirtualNicManagerInfo{NetConfig: []types.VirtualNicManagerNetConfig{config}}
}
