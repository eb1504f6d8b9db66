package main

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// guestFiles is where files of guests are sent to and fetched from.
const guestFiles = "/guestFile"

// operations are the guest operations of VMware Tools, carried out in the guests. Files are reached through the guest's
// root as /proc shows it.
type operations struct {
	center *center

	mutex     sync.Mutex
	transfers map[string]transfer // by token, each to be made once
}

type transfer struct {
	path   string
	upload bool
	mode   os.FileMode
}

func newOperations(c *center) *operations {
	manager := simulator.Map.Get(*content().GuestOperationsManager).(*simulator.GuestOperationsManager)
	login := &mo.GuestAuthManager{Self: types.ManagedObjectReference{
		Type: "GuestAuthManager", Value: "guestOperationsAuthManager",
	}}
	simulator.Map.Put(login)
	manager.AuthManager = &login.Self
	return &operations{center: c, transfers: make(map[string]transfer)}
}

// inside is a method that is carried out in a guest which is ready for it.
type inside func(call *call, at *machine, programs *programs) (interface{}, types.BaseMethodFault)

func (o *operations) methods() map[string]method {
	all := map[string]inside{
		"ValidateCredentialsInGuest": func(*call, *machine, *programs) (interface{}, types.BaseMethodFault) {
			return &types.ValidateCredentialsInGuestResponse{}, nil
		},
		"StartProgramInGuest":             startProgram,
		"ListProcessesInGuest":            listProcesses,
		"TerminateProcessInGuest":         terminateProcess,
		"MakeDirectoryInGuest":            makeDirectory,
		"CreateTemporaryDirectoryInGuest": createTemporaryDirectory,
		"DeleteDirectoryInGuest":          deleteDirectory,
		"DeleteFileInGuest":               deleteFile,
		"ListFilesInGuest":                listFiles,
		"InitiateFileTransferToGuest":     o.transferTo,
		"InitiateFileTransferFromGuest":   o.transferFrom,
	}
	methods := make(map[string]method)
	for name, do := range all {
		methods[name] = o.checked(do)
	}
	return methods
}

// checked lets a method through when the VM runs, its Tools are ready, and the login is right, in the order of Tools.
func (o *operations) checked(do inside) method {
	return func(_ *simulator.Context, call *call) (interface{}, types.BaseMethodFault) {
		request := reflect.ValueOf(call.body).Elem()
		ref := request.FieldByName("Vm").Interface().(types.ManagedObjectReference)
		vm, is := simulator.Map.Get(ref).(*simulator.VirtualMachine)
		if !is {
			return nil, &types.ManagedObjectNotFound{Obj: ref}
		}
		var state types.VirtualMachinePowerState
		ready := false
		simulator.Map.WithLock(vm, func() {
			state = vm.Runtime.PowerState
			ready = vm.Guest.GuestOperationsReady != nil && *vm.Guest.GuestOperationsReady
		})
		if state != types.VirtualMachinePowerStatePoweredOn {
			return nil, &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: state}
		}
		one := o.center.guests.of(ref)
		if !ready || one == nil {
			return nil, &types.GuestOperationsUnavailable{}
		}
		login, is := request.FieldByName("Auth").Interface().(*types.NamePasswordAuthentication)
		if !is || login.Username != o.center.GuestUser || login.Password != o.center.GuestPass {
			return nil, &types.InvalidGuestLogin{}
		}
		one.changing.Lock()
		at, programs := one.machine, one.programs
		one.changing.Unlock()
		if at == nil {
			return nil, &types.GuestOperationsUnavailable{}
		}
		return do(call, at, programs)
	}
}

func startProgram(call *call, at *machine, programs *programs) (interface{}, types.BaseMethodFault) {
	spec := call.body.(*types.StartProgramInGuest).Spec.GetGuestProgramSpec()
	if _, err := os.Stat(at.Root + spec.ProgramPath); err != nil {
		return nil, fileFault(spec.ProgramPath, err)
	}
	pid, err := programs.start(spec)
	if err != nil {
		return nil, &types.SystemError{Reason: err.Error()}
	}
	return &types.StartProgramInGuestResponse{Returnval: pid}, nil
}

func listProcesses(call *call, _ *machine, programs *programs) (interface{}, types.BaseMethodFault) {
	found := programs.list(call.body.(*types.ListProcessesInGuest).Pids)
	return &types.ListProcessesInGuestResponse{Returnval: found}, nil
}

func terminateProcess(call *call, _ *machine, programs *programs) (interface{}, types.BaseMethodFault) {
	pid := call.body.(*types.TerminateProcessInGuest).Pid
	if !programs.end(pid) {
		return nil, &types.GuestProcessNotFound{Pid: pid}
	}
	return &types.TerminateProcessInGuestResponse{}, nil
}

func makeDirectory(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.MakeDirectoryInGuest)
	if request.CreateParentDirectories {
		os.MkdirAll(filepath.Dir(at.Root+request.DirectoryPath), 0o700)
	}
	if err := os.Mkdir(at.Root+request.DirectoryPath, 0o700); err != nil {
		return nil, fileFault(request.DirectoryPath, err)
	}
	return &types.MakeDirectoryInGuestResponse{}, nil
}

func createTemporaryDirectory(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.CreateTemporaryDirectoryInGuest)
	place := request.DirectoryPath
	if place == "" {
		place = "/tmp"
	}
	made, err := os.MkdirTemp(at.Root+place, request.Prefix+"*"+request.Suffix)
	if err != nil {
		return nil, fileFault(place, err)
	}
	path := filepath.Join(place, filepath.Base(made))
	return &types.CreateTemporaryDirectoryInGuestResponse{Returnval: path}, nil
}

func deleteDirectory(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.DeleteDirectoryInGuest)
	path := at.Root + request.DirectoryPath
	found, err := os.Lstat(path)
	if err == nil && !found.IsDir() {
		return nil, &types.NotADirectory{FileFault: types.FileFault{File: request.DirectoryPath}}
	}
	if err == nil && request.Recursive {
		err = os.RemoveAll(path)
	} else if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return nil, fileFault(request.DirectoryPath, err)
	}
	return &types.DeleteDirectoryInGuestResponse{}, nil
}

func deleteFile(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.DeleteFileInGuest)
	if err := os.Remove(at.Root + request.FilePath); err != nil {
		return nil, fileFault(request.FilePath, err)
	}
	return &types.DeleteFileInGuestResponse{}, nil
}

func listFiles(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.ListFilesInGuest)
	found, err := os.Lstat(at.Root + request.FilePath)
	if err != nil {
		return nil, fileFault(request.FilePath, err)
	}
	var list types.GuestListFileInfo
	add := func(path string, found os.FileInfo) {
		kind := types.GuestFileTypeFile
		if found.IsDir() {
			kind = types.GuestFileTypeDirectory
		}
		changed := found.ModTime()
		list.Files = append(list.Files, types.GuestFileInfo{
			Path: path, Type: string(kind), Size: found.Size(),
			Attributes: &types.GuestPosixFileAttributes{
				GuestFileAttributes: types.GuestFileAttributes{ModificationTime: &changed},
				Permissions:         int64(found.Mode().Perm()),
			},
		})
	}
	if !found.IsDir() {
		add(request.FilePath, found)
		return &types.ListFilesInGuestResponse{Returnval: list}, nil
	}
	entries, err := os.ReadDir(at.Root + request.FilePath)
	if err != nil {
		return nil, fileFault(request.FilePath, err)
	}
	for _, entry := range entries {
		if found, err := entry.Info(); err == nil {
			add(entry.Name(), found)
		}
	}
	return &types.ListFilesInGuestResponse{Returnval: list}, nil
}

func (o *operations) transferTo(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.InitiateFileTransferToGuest)
	path := at.Root + request.GuestFilePath
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fileFault(request.GuestFilePath, err)
	}
	if _, err := os.Stat(path); err == nil && !request.Overwrite {
		return nil, &types.FileAlreadyExists{FileFault: types.FileFault{File: request.GuestFilePath}}
	}
	one := transfer{path: path, upload: true, mode: 0o644}
	if posix, is := request.FileAttributes.(*types.GuestPosixFileAttributes); is && posix.Permissions != 0 {
		one.mode = os.FileMode(posix.Permissions)
	}
	return &types.InitiateFileTransferToGuestResponse{Returnval: o.offer(one)}, nil
}

func (o *operations) transferFrom(call *call, at *machine, _ *programs) (interface{}, types.BaseMethodFault) {
	request := call.body.(*types.InitiateFileTransferFromGuest)
	path := at.Root + request.GuestFilePath
	found, err := os.Stat(path)
	if err != nil {
		return nil, fileFault(request.GuestFilePath, err)
	}
	if found.IsDir() {
		return nil, &types.NotAFile{FileFault: types.FileFault{File: request.GuestFilePath}}
	}
	changed := found.ModTime()
	return &types.InitiateFileTransferFromGuestResponse{Returnval: types.FileTransferInformation{
		Attributes: &types.GuestPosixFileAttributes{
			GuestFileAttributes: types.GuestFileAttributes{ModificationTime: &changed},
			Permissions:         int64(found.Mode().Perm()),
		},
		Size: found.Size(),
		Url:  o.offer(transfer{path: path}),
	}}, nil
}

// offer gives the address of a transfer. Its host is `*`: the one that the client is talking to.
func (o *operations) offer(one transfer) string {
	token := uuid.New().String()
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.transfers[token] = one
	return "https://*" + guestFiles + "?" + url.Values{"token": {token}}.Encode()
}

// serveFile makes a transfer.
func (o *operations) serveFile(w http.ResponseWriter, r *http.Request) {
	token := r.URL.Query().Get("token")
	o.mutex.Lock()
	one, offered := o.transfers[token]
	delete(o.transfers, token)
	o.mutex.Unlock()
	if !offered || one.upload != (r.Method == http.MethodPut) {
		http.Error(w, "there is no such transfer", http.StatusNotFound)
		return
	}
	if !one.upload {
		http.ServeFile(w, r, one.path)
		return
	}
	file, err := os.OpenFile(one.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, one.mode)
	if err == nil {
		_, err = io.Copy(file, r.Body)
		if closing := file.Close(); err == nil {
			err = closing
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// fileFault says as Tools do why a file can't be worked with.
func fileFault(path string, err error) types.BaseMethodFault {
	fault := types.FileFault{File: path}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &types.FileNotFound{FileFault: fault}
	case errors.Is(err, os.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		return &types.FileAlreadyExists{FileFault: fault}
	case errors.Is(err, os.ErrPermission):
		return &types.GuestPermissionDenied{}
	case errors.Is(err, syscall.ENOSPC):
		return &types.NoDiskSpace{FileFault: fault}
	case errors.Is(err, syscall.ENOTDIR):
		return &types.NotADirectory{FileFault: fault}
	}
	return &fault
}
