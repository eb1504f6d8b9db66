package main

import (
	"net"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// bootRequest is what the world is told of a VM that is powered on.
type bootRequest struct {
	Name     string `json:"name"`
	Mac      string `json:"mac"`
	NicModel string `json:"nic_model"`
	Address  string `json:"address"` // empty: by DHCP; else with or without the length of its prefix
}

// nicOf gives NIC model and MAC address of the first adapter of a VM; an empty model when it has none.
func nicOf(vm *simulator.VirtualMachine) (model, mac string) {
	for _, device := range vm.Config.Hardware.Device {
		switch card := device.(type) {
		case *types.VirtualVmxnet3:
			return "vmxnet3", card.MacAddress
		case *types.VirtualVmxnet2:
			return "vmxnet2", card.MacAddress
		case *types.VirtualE1000e:
			return "e1000e", card.MacAddress
		case *types.VirtualE1000:
			return "e1000", card.MacAddress
		case *types.VirtualPCNet32:
			return "pcnet32", card.MacAddress
		case *types.VirtualSriovEthernetCard:
			return "sr-iov", card.MacAddress
		case *types.VirtualPCIPassthrough:
			return "vt-d", "02:00:00:00:00:01" // the device's own, which vSphere doesn't know
		}
	}
	return "", ""
}

func newBootRequest(vm *simulator.VirtualMachine, spec *types.CustomizationSpec) bootRequest {
	asked := bootRequest{Name: vm.Name}
	asked.NicModel, asked.Mac = nicOf(vm)
	if spec != nil {
		asked.customise(spec)
	}
	for _, option := range vm.Config.ExtraConfig {
		value := option.GetOptionValue()
		text, _ := value.Value.(string)
		switch value.Key {
		case "guestinfo.labctl.hostname":
			asked.Name = text
		case "guestinfo.labctl.address":
			asked.Address = strings.TrimPrefix(text, "dhcp")
		}
	}
	return asked
}

// customise takes name and address from a customisation specification.
func (b *bootRequest) customise(spec *types.CustomizationSpec) {
	var name types.BaseCustomizationName
	switch identity := spec.Identity.(type) {
	case *types.CustomizationLinuxPrep:
		name = identity.HostName
	case *types.CustomizationSysprep:
		name = identity.UserData.ComputerName
	}
	if fixed, is := name.(*types.CustomizationFixedName); is {
		b.Name = fixed.Name
	}
	for _, adapter := range spec.NicSettingMap {
		if fixed, is := adapter.Adapter.Ip.(*types.CustomizationFixedIp); is {
			length, _ := net.IPMask(net.ParseIP(adapter.Adapter.SubnetMask).To4()).Size()
			b.Address = (&net.IPNet{IP: net.ParseIP(fixed.IpAddress), Mask: net.CIDRMask(length, 32)}).String()
		}
	}
}

// told is what Tools tell of a guest instead of the truth; what is left out is the truth.
type told struct {
	Tools string    `json:"tools"` // `not-running`, `not-ready`; empty: the truth
	Nets  []toldNet `json:"nets"`
	First string    `json:"first"` // guest.ipAddress
}

type toldNet struct {
	Network   string   `json:"network"`
	Mac       string   `json:"mac"` // empty: that of the VM's first adapter
	Addresses []string `json:"addresses"`
}

// tell makes vCenter know what Tools tell of a guest.
func (g *guests) tell(one *guest) {
	vm, is := simulator.Map.Get(one.vm).(*simulator.VirtualMachine)
	if !is {
		return
	}
	g.mutex.Lock()
	said, lies := g.told[vm.Name]
	if !lies {
		said, lies = g.told["*"]
	}
	g.mutex.Unlock()
	if one.machine == nil && !lies {
		said.Tools = "not-running"
	}
	simulator.Map.WithLock(vm, func() {
		if vm.Runtime.PowerState != types.VirtualMachinePowerStatePoweredOff { // as it may be again by now
			simulator.Map.Update(vm, changes(one.machine, &vm.VirtualMachine, said))
		}
	})
}

// changes are the properties of a VM that Tools tell, of a machine that runs or of none. The VM is locked.
func changes(at *machine, vm *mo.VirtualMachine, said told) []types.PropertyChange {
	running, status := types.VirtualMachineToolsRunningStatusGuestToolsRunning, types.VirtualMachineToolsStatusToolsOk
	state := "running"
	ready := said.Tools == ""
	name, first := "", said.First
	nets := adaptersOf(vm)
	if at != nil {
		name = at.Name
		ip, network, _ := net.ParseCIDR(at.Address)
		length, _ := network.Mask.Size()
		if len(nets) > 0 && said.Nets == nil {
			setAddresses(&nets[0], []types.NetIpConfigInfoIpAddress{address(ip.String(), int32(length))})
		}
		if first == "" && said.Nets == nil {
			first = ip.String()
		}
	}
	if said.Nets != nil {
		nets = said.adapters(nets)
	}
	if said.Tools == "not-running" {
		running, status = types.VirtualMachineToolsRunningStatusGuestToolsNotRunning, types.VirtualMachineToolsStatusToolsNotRunning
		state, name, first = "notRunning", "", ""
		nets = adaptersOf(vm)
	}
	vm.Guest.GuestOperationsReady = types.NewBool(ready && state == "running") // Update can't set a *bool
	return []types.PropertyChange{
		{Name: "guest.toolsRunningStatus", Val: string(running)},
		{Name: "guest.toolsStatus", Val: status},
		{Name: "guest.toolsVersion", Val: "12352"},
		{Name: "guest.toolsVersionStatus2", Val: string(types.VirtualMachineToolsVersionStatusGuestToolsUnmanaged)},
		{Name: "guest.guestState", Val: state},
		{Name: "guest.hostName", Val: name},
		{Name: "guest.ipAddress", Val: first},
		{Name: "guest.net", Val: nets},
		{Name: "summary.guest.toolsRunningStatus", Val: string(running)},
		{Name: "summary.guest.toolsStatus", Val: status},
		{Name: "summary.guest.hostName", Val: name},
		{Name: "summary.guest.ipAddress", Val: first},
	}
}

// adaptersOf is what Tools tell of the adapters of a VM before they have addresses.
func adaptersOf(vm *mo.VirtualMachine) []types.GuestNicInfo {
	var nets []types.GuestNicInfo
	for _, device := range vm.Config.Hardware.Device {
		card, is := device.(types.BaseVirtualEthernetCard)
		if !is {
			continue
		}
		ethernet := card.GetVirtualEthernetCard()
		nets = append(nets, types.GuestNicInfo{
			Network:        networkName(ethernet.Backing),
			MacAddress:     ethernet.MacAddress,
			Connected:      true,
			DeviceConfigId: ethernet.Key,
		})
	}
	return nets
}

func networkName(backing types.BaseVirtualDeviceBackingInfo) string {
	switch one := backing.(type) {
	case *types.VirtualEthernetCardNetworkBackingInfo:
		return one.DeviceName
	case *types.VirtualEthernetCardDistributedVirtualPortBackingInfo:
		ref := types.ManagedObjectReference{Type: "DistributedVirtualPortgroup", Value: one.Port.PortgroupKey}
		if portgroup := simulator.Map.Get(ref); portgroup != nil {
			return nameOf(portgroup)
		}
	}
	return ""
}

func (t told) adapters(own []types.GuestNicInfo) []types.GuestNicInfo {
	var nets []types.GuestNicInfo
	for _, wanted := range t.Nets {
		one := types.GuestNicInfo{Network: wanted.Network, MacAddress: wanted.Mac, Connected: true, DeviceConfigId: -1}
		if wanted.Mac == "" && len(own) > 0 {
			one = own[0]
		}
		var addresses []types.NetIpConfigInfoIpAddress
		for _, text := range wanted.Addresses {
			if ip, network, err := net.ParseCIDR(text); err == nil {
				length, _ := network.Mask.Size()
				addresses = append(addresses, address(ip.String(), int32(length)))
			}
		}
		setAddresses(&one, addresses)
		nets = append(nets, one)
	}
	return nets
}

func address(ip string, length int32) types.NetIpConfigInfoIpAddress {
	return types.NetIpConfigInfoIpAddress{IpAddress: ip, PrefixLength: length, State: "preferred"}
}

func setAddresses(nic *types.GuestNicInfo, addresses []types.NetIpConfigInfoIpAddress) {
	nic.IpAddress = nil
	for _, one := range addresses {
		nic.IpAddress = append(nic.IpAddress, one.IpAddress)
	}
	nic.IpConfig = &types.NetIpConfigInfo{IpAddress: addresses}
}

// retell lets Tools of the VMs that run tell what they are now told to.
func (g *guests) retell(name string, said *told) {
	g.mutex.Lock()
	if said == nil {
		delete(g.told, name)
	} else {
		g.told[name] = *said
	}
	var all []*guest
	for _, one := range g.all {
		all = append(all, one)
	}
	g.mutex.Unlock()
	for _, one := range all {
		one.changing.Lock()
		if one.is.state == types.VirtualMachinePowerStatePoweredOn {
			g.tell(one)
		}
		one.changing.Unlock()
	}
}
