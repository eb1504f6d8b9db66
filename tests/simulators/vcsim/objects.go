package main

import (
	"reflect"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// find gives the object of a kind with this name or reference value; nil when there is none.
func find(kind, name string) mo.Entity {
	for _, entity := range simulator.Map.All(kind) {
		if entity.Reference().Value == name || nameOf(entity) == name {
			return entity
		}
	}
	return nil
}

// nameOf gives the name of an object; some kinds have theirs in a field of their own, beside that of the entity.
func nameOf(object mo.Reference) string {
	if entity, is := object.(mo.Entity); is && entity.Entity().Name != "" {
		return entity.Entity().Name
	}
	if field := reflect.ValueOf(object).Elem().FieldByName("Name"); field.IsValid() {
		return field.String()
	}
	return object.Reference().Value
}

// computeOf gives the cluster or compute resource that a host is in.
func computeOf(host *simulator.HostSystem) *mo.ComputeResource {
	if cluster, is := simulator.Map.Get(*host.Parent).(*simulator.ClusterComputeResource); is {
		return &cluster.ComputeResource
	}
	return simulator.Map.Get(*host.Parent).(*mo.ComputeResource)
}

func hostOf(ref *types.ManagedObjectReference) *simulator.HostSystem {
	if ref == nil {
		return nil
	}
	host, _ := simulator.Map.Get(*ref).(*simulator.HostSystem)
	return host
}

// content tells where the managers are.
func content() types.ServiceContent {
	return simulator.Map.Get(vim25.ServiceInstance).(*simulator.ServiceInstance).Content
}
