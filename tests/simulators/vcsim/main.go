// vcsim of labctl's tests: the vCenter simulator of govmomi, in front of which stand guests that are real, vMotion that
// takes its time, privileges that may be missing, and faults on order.
//
// It is a child of tests/simulators/vcsim.py and ends with its standard input. The first line there is its settings, every
// other line a message of link.go.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"log"
	"net"
	"os"

	"github.com/vmware/govmomi/simulator"
)

// protocol is what `vcsim -labctl` prints, so that this program can be told from a vcsim of somebody else's.
const protocol = "labctl-vcsim 1"

// settings is the first line of the standard input.
type settings struct {
	Address     string    `json:"address"` // host:port; port 0 chooses one
	Certificate string    `json:"certificate"`
	Key         string    `json:"key"`
	User        string    `json:"user"`
	Password    string    `json:"password"`
	GuestUser   string    `json:"guest_user"` // who may log in to guests through VMware Tools
	GuestPass   string    `json:"guest_password"`
	World       bool      `json:"world"` // whether VMs that are powered on boot a guest
	Inventory   inventory `json:"inventory"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("vcsim: ")
	if len(os.Args) == 2 && os.Args[1] == "-labctl" {
		os.Stdout.WriteString(protocol + "\n")
		return
	}
	input := bufio.NewReader(os.Stdin)
	wanted := readSettings(input)

	service, err := wanted.Inventory.build()
	if err != nil {
		log.Fatalf("the inventory can't be built: %s", err)
	}
	center := newCenter(wanted, service, newLink(input, os.Stdout))
	listener, err := net.Listen("tcp", wanted.Address)
	if err != nil {
		log.Fatal(err)
	}
	center.address = listener.Addr().String()
	center.open(listener)
	center.link.serve(center.orders(), map[string]interface{}{"address": center.address})
}

func readSettings(input *bufio.Reader) settings {
	var wanted settings
	line, err := input.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &wanted)
	}
	if err != nil {
		log.Fatalf("the settings can't be read: %s", err)
	}
	return wanted
}

// center is one vCenter: the simulator, and all that stands in front of it.
type center struct {
	settings
	service *simulator.Service
	link    *link
	address string
	methods map[string]method

	sessions *sessions
	rules    *rules
	tasks    *tasks
	guests   *guests
	rights   *rights
	pages    *pages
	door     *door

	migrations *migrations
	operations *operations
}

func newCenter(wanted settings, service *simulator.Service, link *link) *center {
	pair, err := tls.LoadX509KeyPair(wanted.Certificate, wanted.Key)
	if err != nil {
		log.Fatalf("the certificate can't be used: %s", err)
	}
	c := &center{
		settings: wanted,
		service:  service,
		link:     link,
		sessions: newSessions(),
		rules:    newRules(),
		tasks:    newTasks(wanted.User),
		rights:   newRights(),
		pages:    newPages(),
		door:     &door{tls: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}},
	}
	c.guests, c.migrations, c.operations = newGuests(c), newMigrations(c), newOperations(c)
	c.methods = c.ownMethods()
	return c
}
