package main

import (
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
)

func (m *migrations) checkRelocate(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CheckRelocate_Task)
	ref := m.center.tasks.start(call, nil, func(*work) (types.AnyType, types.BaseMethodFault) {
		result := m.check(request.Vm, request.Spec)
		return types.ArrayOfCheckResult{CheckResult: []types.CheckResult{result}}, nil
	})
	return &started{Returnval: ref}, nil
}

func (m *migrations) checkMigrate(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CheckMigrate_Task)
	ref := m.center.tasks.start(call, nil, func(*work) (types.AnyType, types.BaseMethodFault) {
		result := m.check(request.Vm, types.VirtualMachineRelocateSpec{Host: request.Host, Pool: request.Pool})
		return types.ArrayOfCheckResult{CheckResult: []types.CheckResult{result}}, nil
	})
	return &started{Returnval: ref}, nil
}

func (m *migrations) check(ref types.ManagedObjectReference, spec types.VirtualMachineRelocateSpec) types.CheckResult {
	result := types.CheckResult{Vm: &ref, Host: spec.Host}
	faults := []types.BaseMethodFault{&types.ManagedObjectNotFound{Obj: ref}}
	if vm, is := simulator.Map.Get(ref).(*simulator.VirtualMachine); is {
		simulator.Map.WithLock(vm, func() { faults = m.obstacles(vm, spec) })
	}
	for _, fault := range faults {
		result.Error = append(result.Error, localized(fault))
	}
	return result
}

// queryCompatibility tells for each pair of VM and host whether processors and software fit.
func (m *migrations) queryCompatibility(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.QueryVMotionCompatibilityEx_Task)
	ref := m.center.tasks.start(call, nil, func(*work) (types.AnyType, types.BaseMethodFault) {
		var results []types.HostVMotionCompatibility
		for range request.Vm {
			for _, ref := range request.Host {
				results = append(results, m.compatibility(ref))
			}
		}
		return types.ArrayOfHostVMotionCompatibility{HostVMotionCompatibility: results}, nil
	})
	return &started{Returnval: ref}, nil
}

func (m *migrations) compatibility(ref types.ManagedObjectReference) types.HostVMotionCompatibility {
	result := types.HostVMotionCompatibility{Host: ref, Compatibility: []string{"software"}}
	host := hostOf(&ref)
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if host != nil && !m.incompatible[host.Name] {
		result.Compatibility = append(result.Compatibility, "cpu")
	}
	return result
}

// queryConfigTarget adds the PCI devices of hosts, which the simulator knows none of, to what it tells.
func (c *center) queryConfigTarget(ctx *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.QueryConfigTarget)
	browser := simulator.Map.Get(call.this).(*simulator.EnvironmentBrowser)
	response := browser.QueryConfigTarget(ctx, request).(*methods.QueryConfigTargetBody).Res
	for _, id := range c.Inventory.Devices {
		device := types.HostPciDevice{
			Id: id, VendorId: -32634, DeviceId: 5409, VendorName: "Intel Corporation", DeviceName: "I350", // 8086:1521
		}
		response.Returnval.PciPassthrough = append(response.Returnval.PciPassthrough, &types.VirtualMachinePciPassthroughInfo{
			PciDevice: device, SystemId: "system",
		})
	}
	for _, id := range c.Inventory.Functions {
		device := types.HostPciDevice{
			Id: id, VendorId: -32634, DeviceId: 4333, VendorName: "Intel Corporation", DeviceName: "82599", // 8086:10ed
		}
		info := types.VirtualMachinePciPassthroughInfo{PciDevice: device, SystemId: "system"}
		response.Returnval.Sriov = append(response.Returnval.Sriov, types.VirtualMachineSriovInfo{
			VirtualMachinePciPassthroughInfo: info, VirtualFunction: true,
		})
	}
	return response, nil
}
