package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
)

// migrationID is the last that a migration was given; hosts number theirs by the time.
var migrationID = time.Now().UnixMicro()

// logStun writes what ESXi writes into the log beside the files of a VM that has arrived by vMotion (Broadcom KB 436882):
// which migration brought it, and how long it stood still. The API doesn't tell that.
func logStun(vm *simulator.VirtualMachine, stood time.Duration) {
	path, err := logOf(vm)
	if err != nil {
		log.Print(err)
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Print(err)
		return
	}
	defer file.Close()
	stamp := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	id := atomic.AddInt64(&migrationID, 1)
	fmt.Fprintf(file, "%s In(05) vmx - Received migrate 'from' request for mid id %d, src ip <127.0.0.1>.\n", stamp, id)
	fmt.Fprintf(file, "%s In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for %d us\n", stamp, stood.Microseconds())
}

// logOf gives the path of a VM's vmware.log on this machine.
func logOf(vm *simulator.VirtualMachine) (string, error) {
	var folder object.DatastorePath
	if !folder.FromString(vm.Config.Files.LogDirectory) {
		return "", fmt.Errorf("%s has no files", vm.Name)
	}
	store, is := find("Datastore", folder.Datastore).(*simulator.Datastore)
	if !is {
		return "", fmt.Errorf("there is no datastore %s", folder.Datastore)
	}
	return filepath.Join(store.Info.GetDatastoreInfo().Url, folder.Path, "vmware.log"), nil
}
