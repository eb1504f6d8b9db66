#!/bin/bash
# What a user would write for the matrix of campaigns/efficiency.yaml: five NIC models, three rounds, a fresh pair of VMs
# each time, 2 s of warm-up and 10 s of iperf3. Arguments: libvirt URI, bridge, kernel, initrd, kernel command line,
# prefix of the guests' addresses (`198.18.0`), prefix length, seconds of warm-up, seconds counted, domain type.
set -eu
uri=$1 bridge=$2 kernel=$3 initrd=$4 cmdline=$5 prefix=$6 length=$7 warm=$8 counted=$9 type=${10}

agent() { virsh -q -c "$uri" qemu-agent-command "$1" "$2" 2>/dev/null; }

create() { # name, last number of the address, NIC model
  virsh -q -c "$uri" create /dev/stdin >/dev/null <<XML
<domain type='$type'>
  <name>$1</name><memory unit='MiB'>192</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><kernel>$kernel</kernel><initrd>$initrd</initrd>
  <cmdline>$cmdline labctl.address=$prefix.$2/$length</cmdline></os>
  <features><acpi/></features>
  <devices>
    <interface type='bridge'><source bridge='$bridge'/><model type='$3'/></interface>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <memballoon model='none'/>
  </devices>
</domain>
XML
}

wait_for() { until agent "$1" '{"execute":"guest-ping"}' >/dev/null; do sleep 0.2; done; }

iperf() { # seconds
  agent by-hand-b '{"execute":"guest-exec","arguments":{"path":"iperf3","arg":["-s","-1"]}}' >/dev/null
  sleep 0.5
  pid=$(agent by-hand-a '{"execute":"guest-exec","arguments":{"path":"iperf3","arg":["-c","'"$prefix.201"'","-t","'"$1"'","-J"],"capture-output":true}}' | grep -o '[0-9]*')
  sleep "$1"
  until agent by-hand-a '{"execute":"guest-exec-status","arguments":{"pid":'"$pid"'}}' | grep -q '"exited":true'; do sleep 0.5; done
}

for round in 1 2 3; do
  for model in $(printf '%s\n' virtio e1000 e1000e rtl8139 vmxnet3 | shuf); do
    create by-hand-a 200 "$model"
    create by-hand-b 201 "$model"
    wait_for by-hand-a
    wait_for by-hand-b
    iperf "$warm"
    iperf "$counted"
    virsh -q -c "$uri" destroy by-hand-a >/dev/null
    virsh -q -c "$uri" destroy by-hand-b >/dev/null
    echo "round $round $model"
  done
done
