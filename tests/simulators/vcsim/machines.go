package main

import (
	"bytes"
	"log"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// cloning is how long a clone takes.
const cloning = 50 * time.Millisecond

// machineMethods make and change VMs where the simulator is too easy: it takes a name twice, and VMs on hosts that can't
// run them; its clones forget most of what they were asked to be, and stay on the host of their template.
func (c *center) machineMethods() map[string]method {
	return map[string]method{
		"CreateVM_Task":    c.createVM,
		"CloneVM_Task":     onVM(c.cloneVM),
		"ReconfigVM_Task":  onVM(c.reconfigVM),
		"CustomizeVM_Task": onVM(c.customizeVM),
		"PowerOnVM_Task":   onVM(c.powerOnVM),
	}
}

// onVM is a method of VMs.
func onVM(
	do func(*simulator.Context, *call, *simulator.VirtualMachine) (interface{}, types.BaseMethodFault),
) method {
	return func(ctx *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
		vm, is := simulator.Map.Get(call.this).(*simulator.VirtualMachine)
		if !is {
			return nil, &types.ManagedObjectNotFound{Obj: call.this}
		}
		return do(ctx, call, vm)
	}
}

func (c *center) createVM(ctx *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CreateVM_Task)
	ref := c.tasks.start(call, nil, func(*work) (types.AnyType, types.BaseMethodFault) {
		return c.create(ctx, request)
	})
	return &started{Returnval: ref}, nil
}

// create has the simulator create a VM, unless a real vCenter would refuse.
func (c *center) create(ctx *simulator.Context, request *types.CreateVM_Task) (types.AnyType, types.BaseMethodFault) {
	folder, is := simulator.Map.Get(request.This).(*simulator.Folder)
	if !is {
		return nil, &types.ManagedObjectNotFound{Obj: request.This}
	}
	if fault := unable(hostOf(request.Host)); fault != nil {
		return nil, fault
	}
	if fault := noRoom(request.Config); fault != nil {
		return nil, fault
	}
	var result types.AnyType
	var fault types.BaseMethodFault
	locked(ctx, folder, func() {
		if other := simulator.Map.FindByName(request.Config.Name, folder.ChildEntity); other != nil {
			fault = &types.DuplicateName{Name: request.Config.Name, Object: other.Reference()}
			return
		}
		result, fault = outcome(folder.CreateVMTask(ctx, request).(*methods.CreateVM_TaskBody).Res.Returnval)
	})
	return result, fault
}

func (c *center) cloneVM(
	ctx *simulator.Context, call *call, source *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CloneVM_Task)
	ref := c.tasks.start(call, nil, func(work *work) (types.AnyType, types.BaseMethodFault) {
		if !work.progress(cloning, 1) {
			return nil, &types.RequestCanceled{}
		}
		return c.clone(ctx, source, request)
	})
	return &started{Returnval: ref}, nil
}

func (c *center) clone(
	ctx *simulator.Context, source *simulator.VirtualMachine, request *types.CloneVM_Task,
) (types.AnyType, types.BaseMethodFault) {
	location := request.Spec.Location
	if location.Pool == nil {
		return nil, &types.InvalidArgument{InvalidProperty: "spec.location.pool"}
	}
	linked := location.DiskMoveType == string(types.VirtualMachineRelocateDiskMoveOptionsCreateNewChildDiskBacking)
	if linked && request.Spec.Snapshot == nil {
		return nil, &types.InvalidArgument{InvalidProperty: "spec.snapshot"}
	}
	var config types.VirtualMachineConfigSpec
	simulator.Map.WithLock(source, func() { config = configOf(source, request, linked) })
	host := location.Host
	if host == nil {
		host = source.Runtime.Host
	}
	made, fault := c.create(ctx, &types.CreateVM_Task{This: request.Folder, Config: config, Pool: *location.Pool, Host: host})
	if fault != nil {
		return nil, fault
	}
	ref := made.(types.ManagedObjectReference)
	clone := simulator.Map.Get(ref).(*simulator.VirtualMachine)
	if spec := request.Spec.Config; spec != nil && len(spec.DeviceChange) > 0 {
		devices := &types.ReconfigVM_Task{Spec: types.VirtualMachineConfigSpec{DeviceChange: spec.DeviceChange}}
		if fault := c.reconfigure(ctx, clone, devices); fault != nil {
			return nil, fault
		}
	}
	if request.Spec.Customization != nil {
		c.guests.setCustomisation(ref, request.Spec.Customization)
	}
	if request.Spec.PowerOn {
		locked(ctx, clone, func() { clone.PowerOnVMTask(ctx, &types.PowerOnVM_Task{This: ref}) })
	}
	if request.Spec.Template {
		locked(ctx, clone, func() { clone.MarkAsTemplate(&types.MarkAsTemplate{This: ref}) })
	}
	return ref, nil
}

// configOf is what a clone is to be: its source, and what was asked for besides.
func configOf(
	source *simulator.VirtualMachine, request *types.CloneVM_Task, linked bool,
) types.VirtualMachineConfigSpec {
	var config types.VirtualMachineConfigSpec
	if request.Spec.Config != nil {
		config = *request.Spec.Config
		config.DeviceChange = nil
	}
	hardware := source.Config.Hardware
	config.Name = request.Name
	config.GuestId = source.Config.GuestId
	config.ExtraConfig = append(append([]types.BaseOptionValue{}, source.Config.ExtraConfig...), config.ExtraConfig...)
	if config.NumCPUs == 0 {
		config.NumCPUs = hardware.NumCPU
	}
	if config.MemoryMB == 0 {
		config.MemoryMB = int64(hardware.MemoryMB)
	}
	store := "[" + datastoreOf(source.Config.Files.VmPathName) + "]"
	if ref := request.Spec.Location.Datastore; ref != nil {
		store = "[" + nameOf(simulator.Map.Get(*ref)) + "]"
	}
	config.Files = &types.VirtualMachineFileInfo{VmPathName: store}
	for _, device := range copyOf(hardware.Device) {
		if isDefault(device) {
			continue
		}
		change := &types.VirtualDeviceConfigSpec{Operation: types.VirtualDeviceConfigSpecOperationAdd, Device: device}
		switch one := device.(type) {
		case *types.VirtualDisk:
			backing := one.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
			if linked {
				parent := *backing
				backing.Parent = &parent
			}
			backing.FileName, backing.Datastore = store, nil
			change.FileOperation = types.VirtualDeviceConfigSpecFileOperationCreate
		case types.BaseVirtualEthernetCard:
			one.GetVirtualEthernetCard().MacAddress = ""
		}
		config.DeviceChange = append(config.DeviceChange, change)
	}
	return config
}

func (c *center) reconfigVM(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.ReconfigVM_Task)
	ref := c.tasks.start(call, nil, func(*work) (types.AnyType, types.BaseMethodFault) {
		return nil, c.reconfigure(ctx, vm, request)
	})
	return &started{Returnval: ref}, nil
}

// reconfigure has the simulator do it, and mends two things: of several values of a key the last counts, and Tools know
// adapters only as long as the VM has them.
func (c *center) reconfigure(
	ctx *simulator.Context, vm *simulator.VirtualMachine, request *types.ReconfigVM_Task,
) (fault types.BaseMethodFault) {
	locked(ctx, vm, func() {
		_, fault = outcome(vm.ReconfigVMTask(ctx, request).(*methods.ReconfigVM_TaskBody).Res.Returnval)
		changes := []types.PropertyChange{{Name: "config.extraConfig", Val: lastOfEach(vm.Config.ExtraConfig)}}
		if vm.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOff {
			changes = append(changes, types.PropertyChange{Name: "guest.net", Val: adaptersOf(&vm.VirtualMachine)})
		}
		simulator.Map.Update(vm, changes)
	})
	return fault
}

func lastOfEach(options []types.BaseOptionValue) []types.BaseOptionValue {
	last := make(map[string]int)
	for at, option := range options {
		last[option.GetOptionValue().Key] = at
	}
	var kept []types.BaseOptionValue
	for at, option := range options {
		value := option.GetOptionValue()
		if last[value.Key] == at && value.Value != "" {
			kept = append(kept, option)
		}
	}
	return kept
}

func (c *center) customizeVM(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CustomizeVM_Task)
	var ref types.ManagedObjectReference
	locked(ctx, vm, func() { ref = vm.CustomizeVMTask(request).(*methods.CustomizeVM_TaskBody).Res.Returnval })
	if _, fault := outcome(ref); fault == nil {
		c.guests.setCustomisation(vm.Self, &request.Spec)
	}
	return &started{Returnval: ref}, nil
}

func (c *center) powerOnVM(
	ctx *simulator.Context, call *call, vm *simulator.VirtualMachine,
) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.PowerOnVM_Task)
	ref := c.tasks.start(call, nil, func(*work) (result types.AnyType, fault types.BaseMethodFault) {
		if fault := unable(hostOf(vm.Runtime.Host)); fault != nil {
			return nil, fault
		}
		locked(ctx, vm, func() {
			body := vm.PowerOnVMTask(ctx, request)
			if body.Fault() != nil {
				fault = body.Fault().VimFault().(types.BaseMethodFault)
				return
			}
			result, fault = outcome(body.(*methods.PowerOnVM_TaskBody).Res.Returnval)
		})
		return result, fault
	})
	return &started{Returnval: ref}, nil
}

// noRoom is the fault of a VM whose datastore is full: nothing is free, or less than its disks take.
func noRoom(config types.VirtualMachineConfigSpec) types.BaseMethodFault {
	store, is := find("Datastore", datastoreOf(config.Files.VmPathName)).(*simulator.Datastore)
	if !is {
		return &types.InvalidDatastorePath{DatastorePath: config.Files.VmPathName}
	}
	var wanted int64
	for _, change := range config.DeviceChange {
		if disk, is := change.GetVirtualDeviceConfigSpec().Device.(*types.VirtualDisk); is {
			wanted += disk.CapacityInKB * 1024
		}
	}
	if store.Summary.FreeSpace > wanted {
		return nil
	}
	return &types.NoDiskSpace{FileFault: types.FileFault{File: config.Files.VmPathName}, Datastore: store.Name}
}

// unable says why a host can't run VMs now; nil when it can, or none is named.
func unable(host *simulator.HostSystem) types.BaseMethodFault {
	switch {
	case host == nil:
		return nil
	case host.Runtime.ConnectionState != types.HostSystemConnectionStateConnected:
		return &types.HostNotConnected{}
	case host.Runtime.InMaintenanceMode:
		return &types.InvalidState{}
	}
	return nil
}

// locked calls into the simulator as it would for a client's call on this object.
func locked(ctx *simulator.Context, on mo.Reference, do func()) {
	ref := on.Reference()
	ctx.Caller = &ref
	simulator.Map.WithLock(on, do)
}

// outcome gives result and fault of a task of the simulator's own, which has ended.
func outcome(ref types.ManagedObjectReference) (types.AnyType, types.BaseMethodFault) {
	task := simulator.Map.Get(ref).(*simulator.Task)
	if task.Info.Error != nil {
		return nil, task.Info.Error.Fault
	}
	return task.Info.Result, nil
}

func isDefault(device types.BaseVirtualDevice) bool {
	for _, one := range esx.VirtualDevice {
		if one.GetVirtualDevice().Key == device.GetVirtualDevice().Key {
			return true
		}
	}
	return false
}

// copyOf copies devices with all that they hold, by way of XML.
func copyOf(devices []types.BaseVirtualDevice) []types.BaseVirtualDevice {
	from := types.ArrayOfVirtualDevice{VirtualDevice: devices}
	text, err := xml.Marshal(from)
	if err != nil {
		log.Panic(err)
	}
	decoder := xml.NewDecoder(bytes.NewReader(text))
	decoder.TypeFunc = types.TypeFunc()
	var to types.ArrayOfVirtualDevice
	if err := decoder.Decode(&to); err != nil {
		log.Panic(err)
	}
	return to.VirtualDevice
}

// datastoreOf gives the name of the datastore in a path such as `[shared] vm/vm.vmx`.
func datastoreOf(path string) string {
	var parsed object.DatastorePath
	parsed.FromString(path)
	return parsed.Datastore
}
