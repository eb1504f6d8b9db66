package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vmware/govmomi/vim25/types"
)

// remembered is for how long Tools tell of a program that has ended.
const remembered = 5 * time.Minute

// programs are what Tools have started in a guest since it booted.
type programs struct {
	machine *machine

	mutex sync.Mutex
	all   map[int64]*types.GuestProcessInfo
}

func newPrograms(m *machine) *programs {
	return &programs{machine: m, all: make(map[int64]*types.GuestProcessInfo)}
}

// start runs a program as Tools on Linux do: the path and the line of arguments go to a shell, output goes nowhere. The id
// of that shell, as the guest knows it, comes by a pipe.
func (p *programs) start(spec *types.GuestProgramSpec) (int64, error) {
	line := spec.ProgramPath + " " + spec.Arguments
	inside := []string{"sh", "-c", `echo $$ >&3; exec 3>&-; cd "$1"; exec sh -c "$2"`, "tools", workingDirectory(spec), line}
	argv := append(append([]string{}, p.machine.Enter...), inside...)
	command := exec.Command(argv[0], argv[1:]...)
	command.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run/root", "USER=root", "LC_ALL=C.UTF-8",
	}, spec.EnvVariables...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	command.ExtraFiles = []*os.File{writer}
	err = command.Start()
	writer.Close()
	if err != nil {
		return 0, err
	}
	told, _ := bufio.NewReader(reader).ReadString('\n')
	pid, err := strconv.ParseInt(strings.TrimSpace(told), 10, 64)
	if err != nil {
		command.Wait()
		return 0, fmt.Errorf("no program started: %w", err)
	}
	info := &types.GuestProcessInfo{
		Name: programName(spec.ProgramPath), Pid: pid, Owner: "root", CmdLine: line, StartTime: time.Now(),
	}
	p.mutex.Lock()
	p.all[pid] = info
	p.mutex.Unlock()
	go p.await(command, info)
	return pid, nil
}

func (p *programs) await(command *exec.Cmd, info *types.GuestProcessInfo) {
	command.Wait()
	ended := time.Now()
	p.mutex.Lock()
	info.EndTime = &ended
	info.ExitCode = int32(command.ProcessState.ExitCode())
	p.mutex.Unlock()
}

// list tells of these programs, or of all.
func (p *programs) list(pids []int64) []types.GuestProcessInfo {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	wanted := make(map[int64]bool)
	for _, pid := range pids {
		wanted[pid] = true
	}
	var found []types.GuestProcessInfo
	for pid, info := range p.all {
		if info.EndTime != nil && time.Since(*info.EndTime) > remembered {
			delete(p.all, pid)
		} else if len(pids) == 0 || wanted[pid] {
			found = append(found, *info)
		}
	}
	return found
}

// end kills a program; false when there is none of this id that runs.
func (p *programs) end(pid int64) bool {
	p.mutex.Lock()
	info := p.all[pid]
	running := info != nil && info.EndTime == nil
	p.mutex.Unlock()
	if !running {
		return false
	}
	argv := append(append([]string{}, p.machine.Enter...), "kill", "-KILL", strconv.FormatInt(pid, 10))
	return exec.Command(argv[0], argv[1:]...).Run() == nil
}

func workingDirectory(spec *types.GuestProgramSpec) string {
	if spec.WorkingDirectory == "" {
		return "/"
	}
	return spec.WorkingDirectory
}

func programName(path string) string {
	return path[strings.LastIndex(path, "/")+1:]
}
