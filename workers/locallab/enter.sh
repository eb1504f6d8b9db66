#!/bin/sh
# Becomes a daemon of one member of the embedded lab. Started in the member's network namespace, in fresh mount and UTS
# namespaces (`ip netns exec NAME unshare --uts --mount --propagation slave`), so that nothing of this shows outside.
#
#   enter.sh NAMESPACE LAB_DIRECTORY MEMBER_DIRECTORY CACHE_DIRECTORY HOSTNAME PID_FILE PROGRAM [ARGUMENT...]
set -eu
namespace=$1 lab=$2 member=$3 cache=$4 hostname=$5 pid_file=$6
shift 6

umask 022
echo 0 >/proc/self/oom_score_adj
echo "$hostname" >/proc/sys/kernel/hostname

# Named network namespaces that are mounted here would stay alive as long as this daemon.
umount -n -R /run/netns 2>/dev/null || :

for file in hosts passwd shadow; do
    mount -n --bind "$member/etc/$file" "/etc/$file"
done

# A /run of its own: the lab's directory, and for a host its libvirt sockets; no D-Bus or udev of this machine's.
# The source of the mount is the mark by which `labctl lab down` finds our processes.
stage=$member/stage
mount -n -t tmpfs -o mode=755,size=16m,nosuid,nodev "$namespace" "$stage"
mkdir "$stage/sshd" "$stage/lock"
case $lab in
/run/*)
    mkdir -p "$stage/${lab#/run/}"
    mount -n --bind "$lab" "$stage/${lab#/run/}"
    ;;
esac
if [ -d "$member/libvirt" ]; then
    mkdir "$stage/libvirt"
    mount -n --bind "$member/libvirt/run" "$stage/libvirt"
    mount -n --bind "$member/libvirt/etc" /etc/libvirt
    mount -n --bind "$member/libvirt/lib" /var/lib/libvirt
    mount -n --bind "$cache" /var/cache/libvirt
    mount -n --bind "$member/libvirt/log" /var/log/libvirt
fi
mount -n --move "$stage" /run

echo $$ >"$pid_file"
exec "$@"
