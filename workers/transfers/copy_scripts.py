"""Scripts of `filecopy` inside Linux endpoints. They are fixed text: values reach them as arguments only.

Every script needs a POSIX shell and `cat`, `cut`, `date`, `dd`, `head`, `mkdir`, `rm`, `sha256sum`, `stat`, `sync`, `wc`,
from busybox or from the usual packages. What they tell is printed in lines that begin with `labctl`.
"""

from __future__ import annotations

MAKE_FOLDER = r"""
# folder, medium
rm -rf "$1" && mkdir -m 700 "$1" || exit
if [ "$2" = disk ]; then
  case $(stat -f -c %T "$1") in
    tmpfs | ramfs | rootfs) echo "$1 lies in memory: there is no disk here" >&2; exit 9 ;;
  esac
fi
"""
"""An empty folder of the transfer's own, on what was asked for."""

MAKE_FILE = r"""
# file, size, cache
head -c "$2" /dev/urandom > "$1" || exit
[ "$(wc -c < "$1")" -eq "$2" ] || { echo "the file could not be made whole" >&2; exit 9; }
hash=$(sha256sum "$1" | cut -d ' ' -f 1)
echo "labctl source $2 $hash"
case $3 in
  warm) cat "$1" > /dev/null ;;
  cold)
    sync
    dd if="$1" iflag=nocache count=0 2>/dev/null || echo 3 > /proc/sys/vm/drop_caches || exit
    ;;
esac
"""
"""A file of an exact size, of random bytes, which nothing on the way can compress. Its hash is taken before the cache is
made warm or cold, because hashing reads it."""

CHECK_FILE = r"""
# file
[ -f "$1" ] || { echo "labctl copy 0 -"; exit 0; }
echo "labctl copy $(wc -c < "$1") $(sha256sum "$1" | cut -d ' ' -f 1)"
"""

REMOVE = r"""
# folders and files
for one; do
  case $one in *-mount) umount "$one" 2>/dev/null || umount -l "$one" 2>/dev/null ;; esac
done
rm -rf "$@"
"""

_RECEIVE = r"""
receive() {  # file, size, cache: exactly so many bytes of standard input
  blocks=$(($2 / 65536)) rest=$(($2 % 65536))
  {
    [ "$blocks" -eq 0 ] || dd bs=65536 count="$blocks" iflag=fullblock
    [ "$rest" -eq 0 ] || dd bs="$rest" count=1 iflag=fullblock
  } > "$1" 2>/dev/null
  [ "$3" != cold ] || sync "$1"
  [ "$(wc -c < "$1")" -eq "$2" ]
}
"""

STREAM_END = (
    _RECEIVE
    + r"""
# send or receive, file, size, cache; standard input and output are the connection
if [ "$1" = send ]; then
  cat "$2" || exit
  said=; read -r said && [ "$said" = received ]
else
  receive "$2" "$3" "$4" && echo received
fi
"""
)
"""One end of a plain TCP stream. The receiver confirms when it has the last byte (and, cold, when the disk has it), so that
the sender's clock covers all of it and not only what it handed to its kernel."""

CONNECT = r"""
# listen or connect, address, port, then the command that gets the connection
how=$1 address=$2 port=$3; shift 3
if busybox nc --help 2>&1 | grep -q -e '-e PROG'; then
  echo "labctl method stream by busybox" >&2
  [ "$how" = listen ] && exec busybox nc -l -p "$port" -e "$@"
  exec busybox nc "$address" "$port" -e "$@"
fi
echo "labctl method stream by python3" >&2
exec python3 -c '
import os, socket, sys
how, address, port, argv = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
if how == "listen":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(1)
    connection, _ = listener.accept()
    listener.close()
else:
    connection = socket.create_connection((address, port))
os.dup2(connection.fileno(), 0)
os.dup2(connection.fileno(), 1)
os.execvp(argv[0], argv)
' "$how" "$address" "$port" "$@"
"""
"""A connection as standard input and output of a command: no byte of the file passes through anything but that command."""

TIMED = r"""
# folder to mount at or -, file to be forced to the disk or -, then the command
mounted=$1 flushed=$2; shift 2
told() { read -r up rest < /proc/uptime; echo "labctl $1 $(date +%s.%N) $up"; }
told start
"$@"
code=$?
[ "$flushed" = - ] || sync "$flushed"
told end
echo "labctl code $code"
[ "$mounted" = - ] || umount "$mounted"
exit $code
"""
"""The copy between two looks at two clocks: of the day with nanoseconds, where `date` has them, and since boot in 1/100 s,
which nobody can set."""

MOUNTED = r"""
# share, folder, options, then script and arguments as of TIMED
mount -t cifs -o "$3" "$1" "$2" || exit
shift 3
exec "$@"
"""
"""A share is mounted before the clock starts, as users have it."""

SSHD = r"""
# configuration
mkdir -p -m 755 /run/sshd
exec /usr/sbin/sshd -D -e -f "$1"
"""

SMBD = r"""
# configuration, folder of the server's own
mkdir -p -m 755 "$2"
exec smbd -F --no-process-group --configfile="$1"
"""
