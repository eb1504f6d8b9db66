#!/bin/sh
# Becomes a guest of `world.py`: started in network, mount, UTS and PID namespaces of its own, it makes itself a machine,
# says its process id, waits for its adapter, says that it is up, and ends with its standard input.
#
#   guest.sh STAGE FILES ADDRESS GATEWAY        (an empty directory; the guest's own files; 198.18.4.10/24; 198.18.4.1)
set -eu
stage=$1 files=$2 address=$3 gateway=$4

read -r pid _ </proc/self/stat # /proc is still that of the machine outside, so this is how it is known there
mount -n -t tmpfs -o mode=755,size=256m guest "$stage"
cp "$files"/* "$stage"
mkdir -m 700 "$stage/root" "$stage/root/.ssh"
mv "$stage/authorized_keys" "$stage/root/.ssh"
mkdir -m 1777 "$stage/tmp"
cat /proc/sys/kernel/osrelease >"$stage/osrelease"

mount -n --move "$stage" /run
mount -n --bind /run/tmp /tmp
for file in passwd hosts hostname; do
    mount -n --bind "/run/$file" "/etc/$file"
done
cat /run/hostname >/proc/sys/kernel/hostname
for place in /usr/sbin/ethtool /usr/bin/ethtool; do
    [ ! -e $place ] || cp $place /run/ethtool.real
    [ ! -e $place ] || mount -n --bind /run/ethtool $place
done

mount -n -t proc proc /proc
mount -n -t sysfs sysfs /sys
mount -n -t tmpfs devices /sys/bus/pci/devices
read -r bus vendor device </run/pci || :
if [ -n "$bus" ]; then
    mkdir "/sys/bus/pci/devices/$bus"
    echo "0x$vendor" >"/sys/bus/pci/devices/$bus/vendor"
    echo "0x$device" >"/sys/bus/pci/devices/$bus/device"
fi
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6

echo "$pid"
read -r _ # the adapter is there
ip link set dev lo up
ip address add "$address" brd + dev eth0
ip link set dev eth0 up
ip route add default via "$gateway"

export HOME=/run/root USER=root LOGNAME=root SHELL=/bin/sh
cd /run/root
dropbear -F -E -s -r /run/host_key -p 22 2>/run/dropbear.log </dev/null >/dev/null &
until grep -qs ':0016 00000000:0000 0A' /proc/net/tcp; do
    sleep 0.01
done
echo up
exec >/dev/null
cat >/dev/null
