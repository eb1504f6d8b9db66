package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// inventory is what the vCenter has when it comes up: one datacenter with all of this.
type inventory struct {
	Datacenter string      `json:"datacenter"`
	Cluster    string      `json:"cluster"`
	Hosts      []string    `json:"hosts"`      // of the cluster
	Standalone []string    `json:"standalone"` // hosts without a cluster
	Datastores []datastore `json:"datastores"`
	Networks   []string    `json:"networks"`   // standard networks beside `VM Network`
	Portgroups []string    `json:"portgroups"` // distributed; a name given twice is in two switches
	Pools      []string    `json:"pools"`      // in the cluster
	Folders    []string    `json:"folders"`    // of VMs
	Templates  []template  `json:"templates"`
	Machines   int         `json:"machines"`  // VMs of somebody else's, powered off
	Devices    []string    `json:"devices"`   // PCI addresses that can be passed through, of every host
	Functions  []string    `json:"functions"` // those of virtual functions
	Directory  string      `json:"directory"`
}

type datastore struct {
	Name  string   `json:"name"`
	Hosts []string `json:"hosts"` // empty: all
}

type template struct {
	Name      string `json:"name"`
	GuestID   string `json:"guest_id"`
	Datastore string `json:"datastore"`
	Nic       string `json:"nic"`
	Snapshot  string `json:"snapshot"` // empty: none
	IsVM      bool   `json:"is_vm"`    // a powered-off VM, not marked as template
}

// builder makes an inventory as a client would, and mends what the simulator leaves out.
type builder struct {
	inventory
	ctx     context.Context
	client  *vim25.Client
	folders *object.DatacenterFolders
	dc      *object.Datacenter
	cluster *object.ClusterComputeResource
	hosts   map[string]*simulator.HostSystem
	order   []string
}

// build makes the simulator's service with this inventory.
func (i inventory) build() (*simulator.Service, error) {
	model := simulator.VPX()
	model.Datacenter = 0 // ours is built below, with names of the tests' choice
	model.ServiceContent.About.Name = "VMware vCenter Server (simulated)"
	model.ServiceContent.About.FullName = "VMware vCenter Server 6.5.0 build-5973321 (simulated by vcsim of govmomi for labctl)"
	if err := model.Create(); err != nil {
		return nil, err
	}
	b := &builder{inventory: i, ctx: context.Background(), hosts: make(map[string]*simulator.HostSystem)}
	var err error
	if b.client, err = vim25.NewClient(b.ctx, model.Service); err != nil {
		return nil, err
	}
	steps := []func() error{
		b.addDatacenter, b.addHosts, b.addDatastores, b.addNetworks, b.addPortgroups, b.addPools, b.addFolders,
		b.addTemplates, b.addMachines,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return model.Service, nil
}

func (b *builder) addDatacenter() (err error) {
	if b.dc, err = object.NewRootFolder(b.client).CreateDatacenter(b.ctx, b.Datacenter); err != nil {
		return err
	}
	b.folders, err = b.dc.Folders(b.ctx)
	return err
}

func (b *builder) addHosts() (err error) {
	spec := types.ClusterConfigSpecEx{}
	if b.cluster, err = b.folders.HostFolder.CreateCluster(b.ctx, b.Cluster, spec); err != nil {
		return err
	}
	for _, name := range b.Hosts {
		connect := types.HostConnectSpec{HostName: name}
		if err := b.addHost(name)(b.cluster.AddHost(b.ctx, connect, true, nil, nil)); err != nil {
			return err
		}
	}
	for _, name := range b.Standalone {
		connect := types.HostConnectSpec{HostName: name}
		if err := b.addHost(name)(b.folders.HostFolder.AddStandaloneHost(b.ctx, connect, true, nil, nil)); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addHost(name string) func(*object.Task, error) error {
	return func(task *object.Task, err error) error {
		if err != nil {
			return err
		}
		info, err := task.WaitForResult(b.ctx, nil)
		if err != nil {
			return err
		}
		ref := info.Result.(types.ManagedObjectReference)
		if ref.Type != "HostSystem" { // a standalone host is answered as its compute resource
			ref = simulator.Map.Get(ref).(*mo.ComputeResource).Host[0]
		}
		host := simulator.Map.Get(ref).(*simulator.HostSystem)
		b.hosts[name] = host
		b.order = append(b.order, name)
		host.Runtime.ConnectionState = types.HostSystemConnectionStateConnected
		host.Config.VirtualNicManagerInfo = vMotion(true)
		return nil
	}
}

// addDatastores makes a datastore on its first host and mounts it on the others: the simulator would forget all but the
// last host that it was made on.
func (b *builder) addDatastores() error {
	for _, wanted := range b.Datastores {
		names := wanted.Hosts
		if len(names) == 0 {
			names = b.order
		}
		path := filepath.Join(b.Directory, wanted.Name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		first := object.NewHostSystem(b.client, b.hosts[names[0]].Self)
		system, err := first.ConfigManager().DatastoreSystem(b.ctx)
		if err != nil {
			return err
		}
		made, err := system.CreateLocalDatastore(b.ctx, wanted.Name, path)
		if err != nil {
			return err
		}
		store := simulator.Map.Get(made.Reference()).(*simulator.Datastore)
		store.Summary.Type = "VMFS"
		store.Summary.MultipleHostAccess = types.NewBool(len(names) > 1)
		for _, name := range names[1:] {
			b.mount(store, b.hosts[name])
		}
	}
	return nil
}

func (b *builder) mount(store *simulator.Datastore, host *simulator.HostSystem) {
	mount := store.Host[0]
	mount.Key = host.Self
	store.Host = append(store.Host, mount)
	host.Datastore = append(host.Datastore, store.Self)
	system := simulator.Map.Get(*host.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem)
	system.Datastore = append(system.Datastore, store.Self)
	compute := computeOf(host)
	simulator.Map.AddReference(compute, &compute.Datastore, store.Self)
}

// addNetworks makes the standard networks on all hosts.
func (b *builder) addNetworks() error {
	for _, name := range b.Networks {
		portgroup := types.HostPortGroupSpec{Name: name, VswitchName: "vSwitch0"}
		first := object.NewHostSystem(b.client, b.hosts[b.order[0]].Self)
		system, err := first.ConfigManager().NetworkSystem(b.ctx)
		if err != nil {
			return err
		}
		if err := system.AddPortGroup(b.ctx, portgroup); err != nil {
			return err
		}
		folder := simulator.Map.Get(b.folders.NetworkFolder.Reference()).(*simulator.Folder)
		network := simulator.Map.FindByName(name, folder.ChildEntity).Reference()
		for _, host := range b.hosts {
			host.Network = append(host.Network, network)
			compute := computeOf(host)
			simulator.Map.AddReference(compute, &compute.Network, network)
			host.Config.Network.Portgroup = append(host.Config.Network.Portgroup, types.HostPortGroup{
				Key: "key-vim.host.PortGroup-" + name, Spec: portgroup,
			})
		}
	}
	return nil
}

// addPortgroups makes the distributed port groups in one switch; the second of a name in another switch in a folder of its own.
func (b *builder) addPortgroups() error {
	var names, twins []string
	seen := make(map[string]bool)
	for _, name := range b.Portgroups {
		if seen[name] {
			twins = append(twins, name)
		} else {
			names = append(names, name)
		}
		seen[name] = true
	}
	if err := b.addSwitch(b.folders.NetworkFolder, "dvs", names); err != nil || len(twins) == 0 {
		return err
	}
	folder, err := b.folders.NetworkFolder.CreateFolder(b.ctx, "more")
	if err != nil {
		return err
	}
	return b.addSwitch(folder, "dvs-more", twins)
}

func (b *builder) addSwitch(folder *object.Folder, name string, portgroups []string) error {
	var spec types.DVSCreateSpec
	spec.ConfigSpec = &types.VMwareDVSConfigSpec{DVSConfigSpec: types.DVSConfigSpec{Name: name}, MaxMtu: 9000}
	task, err := folder.CreateDVS(b.ctx, spec)
	if err != nil {
		return err
	}
	info, err := task.WaitForResult(b.ctx, nil)
	if err != nil {
		return err
	}
	made := object.NewDistributedVirtualSwitch(b.client, info.Result.(types.ManagedObjectReference))
	simulator.Map.Get(made.Reference()).(*simulator.DistributedVirtualSwitch).Config.(*types.VMwareDVSConfigInfo).MaxMtu = 9000
	for _, host := range b.order {
		config := types.DVSConfigSpec{Host: []types.DistributedVirtualSwitchHostMemberConfigSpec{{
			Operation: string(types.ConfigSpecOperationAdd), Host: b.hosts[host].Self,
		}}}
		if err := wait(made.Reconfigure(b.ctx, &config)); err != nil {
			return err
		}
	}
	for _, portgroup := range portgroups {
		if err := wait(made.AddPortgroup(b.ctx, []types.DVPortgroupConfigSpec{{Name: portgroup, NumPorts: 8}})); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addPools() error {
	root, err := b.cluster.ResourcePool(b.ctx)
	for _, name := range b.Pools {
		if err == nil {
			_, err = root.Create(b.ctx, name, types.DefaultResourceConfigSpec())
		}
	}
	return err
}

func (b *builder) addFolders() (err error) {
	for _, name := range b.Folders {
		if _, err = b.folders.VmFolder.CreateFolder(b.ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addTemplates() error {
	for _, wanted := range b.Templates {
		vm, err := b.addMachine(wanted)
		if err != nil {
			return fmt.Errorf("template %s: %w", wanted.Name, err)
		}
		if wanted.Snapshot != "" {
			if err := wait(vm.CreateSnapshot(b.ctx, wanted.Snapshot, "", false, false)); err != nil {
				return err
			}
		}
		if wanted.IsVM {
			continue
		}
		if err := vm.MarkAsTemplate(b.ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addMachine(wanted template) (*object.VirtualMachine, error) {
	var devices object.VirtualDeviceList
	scsi, err := devices.CreateSCSIController("pvscsi")
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("[%s] %s/%s.vmdk", wanted.Datastore, wanted.Name, wanted.Name)
	disk := devices.CreateDisk(scsi.(types.BaseVirtualController), types.ManagedObjectReference{}, path)
	disk.CapacityInKB = 1024
	backing := &types.VirtualEthernetCardNetworkBackingInfo{}
	backing.DeviceName = "VM Network"
	card, err := object.EthernetCardTypes().CreateEthernetCard(wanted.Nic, backing)
	if err != nil {
		return nil, err
	}
	config := types.VirtualMachineConfigSpec{
		Name:     wanted.Name,
		GuestId:  wanted.GuestID,
		NumCPUs:  1,
		MemoryMB: 1024,
		Files:    &types.VirtualMachineFileInfo{VmPathName: fmt.Sprintf("[%s]", wanted.Datastore)},
	}
	devices = append(devices, scsi, disk, card)
	if config.DeviceChange, err = devices.ConfigSpec(types.VirtualDeviceConfigSpecOperationAdd); err != nil {
		return nil, err
	}
	host := b.hosts[b.order[0]]
	pool := object.NewResourcePool(b.client, *computeOf(host).ResourcePool)
	task, err := b.folders.VmFolder.CreateVM(b.ctx, config, pool, object.NewHostSystem(b.client, host.Self))
	if err != nil {
		return nil, err
	}
	info, err := task.WaitForResult(b.ctx, nil)
	if err != nil {
		return nil, err
	}
	return object.NewVirtualMachine(b.client, info.Result.(types.ManagedObjectReference)), nil
}

// addMachines fills the inventory with VMs that nobody looks into: copies of one, put straight into the registry, since
// the simulator would take minutes and five files each to create thousands.
func (b *builder) addMachines() error {
	if b.Machines == 0 {
		return nil
	}
	first, err := b.addMachine(template{
		Name: "other-0", GuestID: "otherGuest", Datastore: b.Datastores[0].Name, Nic: "e1000",
	})
	if err != nil {
		return err
	}
	pattern := simulator.Map.Get(first.Reference()).(*simulator.VirtualMachine)
	folder := simulator.Map.Get(*pattern.Parent).(*simulator.Folder)
	host := simulator.Map.Get(*pattern.Runtime.Host).(*simulator.HostSystem)
	for number := 1; number < b.Machines; number++ {
		copied := *pattern
		config := *pattern.Config
		name := fmt.Sprintf("other-%d", number)
		config.Name, config.Uuid, config.InstanceUuid = name, uuid.New().String(), uuid.New().String()
		copied.Config = &config
		copied.Summary.Config.Name, copied.Summary.Config.Uuid = name, config.Uuid
		copied.Summary.Config.InstanceUuid = config.InstanceUuid
		copied.Name, copied.Self = name, types.ManagedObjectReference{Type: "VirtualMachine"}
		ref := simulator.Map.PutEntity(folder, &copied).Reference()
		copied.Summary.Vm = &ref
		folder.ChildEntity = append(folder.ChildEntity, ref)
		host.Vm = append(host.Vm, ref)
	}
	return nil
}

func wait(task *object.Task, err error) error {
	if err != nil {
		return err
	}
	return task.Wait(context.Background())
}
