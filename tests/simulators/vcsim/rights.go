package main

import (
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// needed are privileges that methods ask for, on the object that they are called on.
var needed = map[string]string{
	"CreateVM_Task":       "VirtualMachine.Inventory.Create",
	"CloneVM_Task":        "VirtualMachine.Provisioning.DeployTemplate",
	"ReconfigVM_Task":     "VirtualMachine.Config.AddRemoveDevice",
	"CustomizeVM_Task":    "VirtualMachine.Provisioning.Customize",
	"PowerOnVM_Task":      "VirtualMachine.Interact.PowerOn",
	"PowerOffVM_Task":     "VirtualMachine.Interact.PowerOff",
	"Destroy_Task":        "VirtualMachine.Inventory.Delete",
	"RelocateVM_Task":     "Resource.HotMigrate",
	"MigrateVM_Task":      "Resource.HotMigrate",
	"StartProgramInGuest": "VirtualMachine.GuestOperations.Execute",
}

// rights are the privileges that the user lacks, by object; all others are granted.
type rights struct {
	mutex   sync.Mutex
	missing map[string]map[string]bool // by privilege, the names of objects; `*` is every object
}

func newRights() *rights {
	return &rights{missing: make(map[string]map[string]bool)}
}

func (r *rights) methods() map[string]method {
	return map[string]method{
		"HasPrivilegeOnEntities":       r.hasPrivilegeOnEntities,
		"FetchUserPrivilegeOnEntities": r.fetchUserPrivilegeOnEntities,
	}
}

// set says anew what is missing.
func (r *rights) set(missing map[string][]string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.missing = make(map[string]map[string]bool)
	for privilege, objects := range missing {
		r.missing[privilege] = make(map[string]bool)
		for _, object := range objects {
			r.missing[privilege][object] = true
		}
	}
}

// grants tells whether the user has a privilege on an object.
func (r *rights) grants(privilege string, ref types.ManagedObjectReference) bool {
	r.mutex.Lock()
	objects := r.missing[privilege]
	r.mutex.Unlock()
	if len(objects) == 0 {
		return true
	}
	found := simulator.Map.Get(ref)
	return found != nil && !objects["*"] && !objects[nameOf(found)]
}

// refusal is the fault of a call that the user has no right to; nil when he has.
func (r *rights) refusal(call *call) types.BaseMethodFault {
	privilege, asked := needed[call.name]
	if !asked || r.grants(privilege, call.this) {
		return nil
	}
	return &types.NoPermission{Object: call.this, PrivilegeId: privilege}
}

func (r *rights) hasPrivilegeOnEntities(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.HasPrivilegeOnEntities)
	response := &types.HasPrivilegeOnEntitiesResponse{}
	for _, entity := range request.Entity {
		told := types.EntityPrivilege{Entity: entity}
		for _, privilege := range request.PrivId {
			told.PrivAvailability = append(told.PrivAvailability, types.PrivilegeAvailability{
				PrivId: privilege, IsGranted: r.grants(privilege, entity),
			})
		}
		response.Returnval = append(response.Returnval, told)
	}
	return response, nil
}

func (r *rights) fetchUserPrivilegeOnEntities(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.FetchUserPrivilegeOnEntities)
	manager := simulator.Map.Get(call.this).(*simulator.AuthorizationManager)
	response := &types.FetchUserPrivilegeOnEntitiesResponse{}
	for _, entity := range request.Entities {
		told := types.UserPrivilegeResult{Entity: entity}
		for _, role := range manager.RoleList {
			if role.Name != "Admin" {
				continue
			}
			for _, privilege := range role.Privilege {
				if r.grants(privilege, entity) {
					told.Privileges = append(told.Privileges, privilege)
				}
			}
		}
		response.Returnval = append(response.Returnval, told)
	}
	return response, nil
}
