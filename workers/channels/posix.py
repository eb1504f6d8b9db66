"""Jobs inside POSIX endpoints: what the guest agent's and the SSH channel have in common.

A channel only has to carry one small shell script with arguments to the endpoint and bring back what it printed; all
the rest is here, and is the same for both. The scripts are fixed text: values reach them as arguments only. They need
a POSIX shell (dash, bash and busybox ash were tried), /proc, and cat, grep, kill, mkdir, rm, setsid, sleep and wc,
from busybox or from the usual packages.

A command runs as a job, in a session of its own, with a directory `/tmp/labctl-job-TOKEN` (mode 0700) for its output.
The directory's name is also in the environment of the command (`LABCTL_JOB`), which its children inherit: so all of
them are found and ended, even those that made a session of their own. A watchdog in the endpoint ends a job when its
time is over, whatever became of the worker, and removes what nobody collects.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from labctl.errors import LabError
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError, CommandResult
from workers.guard import Deadline, Guard

READY_SECONDS = 10
"""How long a started command may take until it listens on its port."""

START_SECONDS = 30.0
"""How long `start` waits for the endpoint's answer, the wait for the port included."""

CLEAN_UP_SECONDS = 5.0
"""How long ending a job may take: it gets a second between SIGTERM and SIGKILL, and emulated guests are slow."""

CALL_SECONDS = 15.0
"""How long a short question about a job may take."""

ROUND_SECONDS = 10.0
"""How long one script waits inside the endpoint for the end of a job before the worker asks anew."""

OUTLIVE_SECONDS = 5.0
"""How long after its deadline the watchdog ends a command that the worker should have ended."""


class EndpointSilentError(ChannelError):
    """The endpoint itself does not answer, so there is no use in asking it to end a job."""


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What a script printed and its exit code."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class PosixChannel(ABC):
    """A `Channel` into a POSIX endpoint. Safe to use from several threads."""

    inline_limit: int
    """Bytes of output that a script may print; more is left in the job's directory and read as files."""
    clean_up_seconds = CLEAN_UP_SECONDS

    def __init__(self, *, endpoint: str, guard: Guard) -> None:
        self._endpoint = endpoint
        self._guard = guard
        self._jobs: set[str] = set()
        self._jobs_lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Whose inside this is, for messages."""
        return self._endpoint

    @abstractmethod
    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`."""

    @abstractmethod
    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`."""

    @abstractmethod
    def _execute(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        deadline: Deadline,
        guard: Guard,
        quiet: float = 0.0,
    ) -> Spoken:
        """Run a script by `/bin/sh -c` with `$1`, `$2`, ... set, and return what it printed.

        Nothing is asked of the endpoint for `quiet` seconds after the script was started. At the deadline:
        `ChannelError` (`channel-timeout`), `EndpointSilentError` if the endpoint doesn't answer at all.
        """

    @abstractmethod
    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        """The content of a file of any size; `ChannelError` (`command-failed`) if it can't be read."""

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", quiet: float = 0.0) -> CommandResult:
        """See `Channel.run`."""
        _require_argv(argv)
        began = time.monotonic()
        deadline = Deadline.after(timeout)
        self._connect(deadline=deadline, guard=self._guard)
        directory = self._new_job()
        arguments = [directory, _seconds(timeout + OUTLIVE_SECONDS), str(self.inline_limit), *argv]
        try:
            spoken = self._execute(
                RUN_SCRIPT, arguments, stdin=stdin, deadline=deadline, guard=self._guard, quiet=quiet
            )
            report = self._report(spoken)
            stdout, stderr = self._outputs(directory, report, spoken, deadline=deadline, guard=self._guard)
        except EndpointSilentError:
            raise
        except ChannelError as error:
            if error.kind == "channel-timeout":
                self._raise_overdue(directory, argv, timeout, error)
            if error.kind != "channel-unreachable":
                self._end_jobs([directory])
            raise
        except BaseException:
            self._end_jobs([directory])
            raise
        self._forget(directory)
        return CommandResult(
            argv=tuple(argv),
            exit_code=report.require_code(),
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - began,
        )

    def start(self, argv: Sequence[str], *, lifetime: float, ready_port: int | None = None) -> PosixProcess:
        """See `Channel.start`."""
        _require_argv(argv)
        began = time.monotonic()
        deadline = Deadline.after(START_SECONDS)
        self._connect(deadline=deadline, guard=self._guard)
        directory = self._new_job()
        port = "-" if ready_port is None else f"{ready_port:04X}"
        arguments = [directory, _seconds(lifetime), str(self.inline_limit), port, str(READY_SECONDS), *argv]
        try:
            spoken = self._execute(START_SCRIPT, arguments, stdin=b"", deadline=deadline, guard=self._guard)
            report = self._report(spoken)
            if report.state == "running":
                return PosixProcess(self, directory, tuple(argv), report.require_pid(), began)
            stdout, stderr = self._outputs(directory, report, spoken, deadline=deadline, guard=self._guard)
        except BaseException:
            self._end_jobs([directory])
            raise
        self._forget(directory)
        raise _not_started(self._endpoint, argv, report, ready_port, stdout, stderr)

    def read_file(self, path: str, *, timeout: float) -> bytes:
        """See `Channel.read_file`. `ChannelError` (`command-failed`) if there is no such file."""
        return self._read(path, deadline=Deadline.after(timeout), guard=self._guard)

    def write_file(self, path: str, content: bytes, *, timeout: float, mode: int = 0o644) -> None:
        """See `Channel.write_file`. A reader sees the old content or the new, never a part of it."""
        beside = f"{path}.labctl-{secrets.token_hex(4)}"
        spoken = self._execute(
            WRITE_SCRIPT,
            [path, beside, f"{mode:o}"],
            stdin=content,
            deadline=Deadline.after(timeout),
            guard=self._guard,
        )
        if spoken.exit_code != 0:
            raise ChannelError(
                f"The file {path} could not be written in {self._endpoint}.",
                kind="command-failed",
                why=_text(spoken.stderr),
            )

    def close(self) -> None:
        """See `Channel.close`. Ends every job of this channel that still runs. Never raises for a dead endpoint."""
        with self._jobs_lock:
            left = sorted(self._jobs)
        if left:
            self._end_jobs(left)
        self._disconnect()

    @abstractmethod
    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        """Make the connection that commands need, if there is none yet."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Let go of the connection."""

    def _new_job(self) -> str:
        """The name of a new directory in the endpoint, which is remembered until it is gone again.

        Scripts make it by mkdir, which refuses whatever is there already.
        """
        directory = f"/tmp/labctl-job-{secrets.token_hex(8)}"  # noqa: S108
        with self._jobs_lock:
            self._jobs.add(directory)
        return directory

    def _forget(self, directory: str) -> None:
        with self._jobs_lock:
            self._jobs.discard(directory)

    def _end_jobs(self, directories: Sequence[str]) -> bool:
        """End jobs and remove their directories, cancelled or not; whether that worked.

        What did not work is tried again when the channel is closed; the watchdogs inside the endpoint do the rest.
        """
        deadline = Deadline.after(self.clean_up_seconds)
        try:
            spoken = self._execute(END_SCRIPT, directories, stdin=b"", deadline=deadline, guard=Guard())
        except LabError:
            return False
        if spoken.exit_code != 0:
            return False
        for directory in directories:
            self._forget(directory)
        return True

    def _raise_overdue(self, directory: str, argv: Sequence[str], timeout: float, error: ChannelError) -> NoReturn:
        ended = self._end_jobs([directory])
        fate = "was killed" if ended else "could not be killed; its endpoint ends it in some seconds"
        raise ChannelError(
            f"{argv[0]} did not end within {timeout:g} s in {self._endpoint}.",
            kind="channel-timeout",
            why=f"{' '.join(argv)} was still running and {fate}.",
            todo="Allow more time, or find out why it hangs.",
        ) from error

    def _report(self, spoken: Spoken) -> _Report:
        match = _REPORT.match(spoken.stdout)
        if match is None:
            raise ChannelError(
                f"{self._endpoint} does not run commands.",
                kind="channel-refused",
                why=f"The launcher ended with exit code {spoken.exit_code} and said: "
                f"{_text(spoken.stderr) or _text(spoken.stdout) or 'nothing'}",
                todo="See that the endpoint has a POSIX shell, /proc, setsid, and room in /tmp.",
            )
        state, pid, code, out, err = (field.decode() for field in match.groups())
        return _Report(
            state=state,
            pid=None if pid == "-" else int(pid),
            code=None if code == "-" else int(code),
            out=int(out),
            err=int(err),
            header=match.end(),
        )

    def _outputs(
        self, directory: str, report: _Report, spoken: Spoken, *, deadline: Deadline, guard: Guard
    ) -> tuple[bytes, bytes]:
        """Stdout and stderr of a job, printed by the script or left in its directory, complete in either case."""
        if report.out + report.err <= self.inline_limit:
            stdout, stderr = spoken.stdout[report.header :], spoken.stderr
        else:
            stdout = self._read(f"{directory}/out", deadline=deadline, guard=guard)
            stderr = self._read(f"{directory}/err", deadline=deadline, guard=guard)
            if report.state != "running":
                self._end_jobs([directory])
        if report.state != "running" and (len(stdout), len(stderr)) != (report.out, report.err):
            raise ChannelError(
                f"Output was lost on its way from {self._endpoint}.",
                kind="command-failed",
                why=f"{report.out} and {report.err} bytes were printed, {len(stdout)} and {len(stderr)} arrived.",
            )
        return stdout, stderr


class PosixProcess:
    """A `Process` in a POSIX endpoint. Its result is fetched once and kept."""

    def __init__(self, channel: PosixChannel, directory: str, argv: tuple[str, ...], pid: int, began: float) -> None:
        self._channel = channel
        self._directory = directory
        self._argv = argv
        self._pid = pid
        self._began = began
        self._result: CommandResult | None = None
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """Process id inside the endpoint."""
        return self._pid

    def finished(self) -> bool:
        """See `Process.finished`."""
        with self._lock:
            return self._result is not None or self._ask(ENDED_SCRIPT, [self._directory]).exit_code == 0

    def wait(self, *, timeout: float, quiet: float = 0.0) -> CommandResult:
        """See `Process.wait`."""
        deadline = Deadline.after(timeout)
        if self._result is None:
            self._channel._guard.sleep(min(quiet, timeout))
        while True:
            with self._lock:
                patience = min(deadline.left, ROUND_SECONDS)
                result = self._result or self._collect(WAIT_SCRIPT, patience, guard=self._channel._guard)
            if result is not None:
                return result
            if deadline.passed:
                raise ChannelError(
                    f"{self._argv[0]} did not end within {timeout:g} s in {self._channel.endpoint}.",
                    kind="channel-timeout",
                    why="It still runs.",
                )

    def output(self) -> tuple[bytes, bytes]:
        """See `Process.output`."""
        with self._lock:
            if self._result is not None:
                return self._result.stdout, self._result.stderr
            channel = self._channel
            spoken = self._ask(OUTPUT_SCRIPT, [self._directory, str(channel.inline_limit)])
            report = channel._report(spoken)
            if report.state == "gone":
                raise self._gone()
            deadline = Deadline.after(CALL_SECONDS)
            return channel._outputs(self._directory, report, spoken, deadline=deadline, guard=channel._guard)

    def kill(self) -> None:
        """See `Process.kill`. What it had printed stays available by `output` and `wait`."""
        with self._lock:
            if self._result is None:
                self._collect(KILL_SCRIPT, 0.0, guard=Guard())

    def _ask(self, script: str, arguments: Sequence[str]) -> Spoken:
        deadline = Deadline.after(CALL_SECONDS)
        return self._channel._execute(script, arguments, stdin=b"", deadline=deadline, guard=self._channel._guard)

    def _collect(self, script: str, patience: float, *, guard: Guard) -> CommandResult | None:
        """The result, by a script that waits up to `patience` seconds for it; None when it still runs."""
        channel = self._channel
        deadline = Deadline.after(patience + CALL_SECONDS)
        arguments = [self._directory, str(channel.inline_limit), str(math.ceil(patience * 100))]
        spoken = channel._execute(script, arguments, stdin=b"", deadline=deadline, guard=guard, quiet=0.0)
        report = channel._report(spoken)
        if report.state == "running":
            return None
        if report.state == "gone":
            channel._forget(self._directory)
            raise self._gone()
        stdout, stderr = channel._outputs(self._directory, report, spoken, deadline=deadline, guard=guard)
        channel._forget(self._directory)
        self._result = CommandResult(
            argv=self._argv,
            exit_code=report.require_code(),
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - self._began,
        )
        return self._result

    def _gone(self) -> ChannelError:
        return ChannelError(
            f"The result of {self._argv[0]} is gone from {self._channel.endpoint}.",
            kind="command-failed",
            why=f"{self._directory} is not there: the endpoint was restarted, or the command's lifetime is long over.",
        )


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The first line that a script printed: how its job stands, and how many bytes the job printed."""

    state: str
    pid: int | None
    code: int | None
    out: int
    err: int
    header: int
    """Bytes of this line."""

    def require_code(self) -> int:
        if self.code is None:
            raise ChannelError(
                "A command ended without an exit code.",
                kind="command-failed",
                why="Its launcher was killed inside the endpoint.",
            )
        return self.code

    def require_pid(self) -> int:
        if self.pid is None:
            raise ChannelError(
                "A command was not started.", kind="command-failed", why="Its launcher could not start it."
            )
        return self.pid


_REPORT = re.compile(rb"labctl ([a-z]+) (\d+|-) (\d+|-) (\d+) (\d+)\n")


def _not_started(
    endpoint: str, argv: Sequence[str], report: _Report, port: int | None, stdout: bytes, stderr: bytes
) -> ChannelError:
    said = "; ".join(filter(None, [_text(stderr), _text(stdout)])) or "nothing"
    if report.state == "busy":
        return ChannelError(
            f"{argv[0]} was not started in {endpoint}.",
            kind="command-failed",
            why=f"Another program listens on port {port} already.",
            todo="End that program, or use another port.",
        )
    if report.state == "deaf":
        why = f"It did not listen on port {port} within {READY_SECONDS} s and was killed; it said: {said}"
    else:
        why = f"It ended with exit code {report.code} before it listened on port {port}; it said: {said}"
    return ChannelError(f"{argv[0]} did not start in {endpoint}.", kind="command-failed", why=why)


def _require_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0] or argv[0].startswith("-"):
        raise ValueError(f"not a command: {argv!r}")
    if any("\0" in argument for argument in argv):
        raise ValueError(f"an argument can't hold a NUL byte: {argv!r}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-400:]


_COMMON = r"""
PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
cd /

# Every function works on the job in "$dir": out and err are what it printed, pid its first process (a session
# leader), watchdog the process that ends it in time, code its exit code once it has ended.

uptime() {  # sets now: hundredths of a second since the start of the endpoint
    read -r now _ </proc/uptime
    now=$((${now%.*} * 100 + 1${now#*.} - 100))
}

marked() {  # the processes of the job, as /proc/PID/environ
    grep -lszxF "LABCTL_JOB=$dir" /proc/[0-9]*/environ
}

signal() {  # signal_name
    [ -s "$dir/code" ] || kill "-$1" "-$pid"
    for process in $(marked); do
        process=${process%/environ}
        kill "-$1" "${process#/proc/}"
    done
}

lives() {
    { [ ! -s "$dir/code" ] && kill -0 "-$pid"; } || [ -n "$(marked)" ]
}

end_job() {
    pid=
    read -r pid <"$dir/pid"
    signal TERM
    for pause in 0.02 0.03 0.05 0.1 0.2 0.3 0.3; do
        lives || return 0
        sleep "$pause"
    done
    for pause in 0.02 0.1 0.2; do
        signal KILL
        lives || return 0
        sleep "$pause"
    done
}

await_code() {  # reads code, which the supervisor writes a moment after the end of the job
    code=
    for pause in 0.01 0.02 0.05 0.1 0.2 0.3; do
        [ -d "$dir" ] && [ ! -s "$dir/code" ] || break
        sleep "$pause"
    done
    read -r code <"$dir/code"
}

supervise() {  # seconds_to_live, command; sets pid and code; the command's stdin is descriptor 3
    life=$1
    shift
    LABCTL_JOB=$dir setsid "$@" <&3 3<&- >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3<&-
    (
        # KILL, because a child that has not become sleep yet may lose a TERM.
        go='[ "$!" = "$pid" ] || kill -KILL "$!"; exit'
        trap "$go" TERM
        sleep "$life" &
        wait "$!"
        trap '' TERM  # whoever collects the result now must not stop us before all its children have ended
        end_job
        trap "$go" TERM
        [ -d "$dir" ] || exit
        sleep 60 &
        wait "$!"
        rm -rf "$dir"
    ) </dev/null >/dev/null 2>&1 &
    echo "$!" >"$dir/watchdog"
    echo "$pid" >"$dir/pid"
    wait "$pid" 2>/dev/null
    code=$?
    echo "$code" >"$dir/code"
}

report() {  # state
    echo "labctl $1 ${pid:--} ${code:--} ${out:-0} ${err:-0}"
}

deliver() {  # state; prints the report and the output; fails when there is too much of it to print
    state=$1 out=0 err=0
    if [ -s "$dir/out" ] || [ -s "$dir/err" ]; then
        set -- $(wc -c "$dir/out" "$dir/err")
        out=$1 err=$3
    fi
    report "$state"
    [ $((out + err)) -le "$limit" ] || return 1
    [ "$out" = 0 ] || cat "$dir/out"
    [ "$err" = 0 ] || cat "$dir/err" >&2
    return 0
}

forget() {
    watchdog=
    read -r watchdog <"$dir/watchdog"
    rm -rf "$dir"
    [ -z "$watchdog" ] || kill "$watchdog"
} 2>/dev/null
"""

RUN_SCRIPT = (
    _COMMON
    + r"""
dir=$1 life=$2 limit=$3
shift 3
mkdir -m 700 "$dir" || exit
exec 3<&0 </dev/null
supervise "$life" "$@"
trap '' PIPE
deliver ended && forget
exit 0
"""
)
"""Arguments: directory, seconds to live, limit, command. Runs the command to its end."""

START_SCRIPT = (
    _COMMON
    + r"""
dir=$1 life=$2 limit=$3 port=$4 ready=$5
shift 5

listening() {  # TCP sockets in state LISTEN (0A), UDP sockets that are bound and not connected (07)
    grep -qsE "^ *[0-9]+: [0-9A-F]+:$port [0-9A-F]+:0000 (0A|07) " \
        /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6
}

if [ "$port" != - ] && listening; then
    report busy
    exit
fi
mkdir -m 700 "$dir" || exit
exec 3</dev/null
(
    exec </dev/null >/dev/null 2>&1  # a redirection of the function would keep the old descriptors open beside
    supervise "$life" "$@"
) &
exec 3<&-
for pause in 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 1 1; do
    [ ! -s "$dir/pid" ] || break
    sleep "$pause"
done
read -r pid <"$dir/pid"
if [ "$port" = - ]; then
    report running
    exit
fi
uptime
end=$((now + ready * 100))
while [ "$now" -lt "$end" ]; do
    if [ -s "$dir/code" ]; then
        await_code
        deliver ended && forget
        exit 0
    fi
    if listening; then
        report running
        exit
    fi
    sleep 0.02
    uptime
done
end_job 2>/dev/null
await_code
deliver deaf && forget
exit 0
"""
)
"""Arguments: directory, seconds to live, limit, port in hexadecimal or -, seconds until it must listen, command."""

WAIT_SCRIPT = (
    _COMMON
    + r"""
dir=$1 limit=$2 patience=$3
uptime
end=$((now + patience))
while [ -d "$dir" ] && [ ! -s "$dir/code" ]; do
    if [ "$now" -ge "$end" ]; then
        report running
        exit
    fi
    sleep 0.1
    uptime
done
if ! read -r pid <"$dir/pid" 2>/dev/null; then
    report gone
    exit
fi
await_code
deliver ended && forget
exit 0
"""
)
"""Arguments: directory, limit, hundredths of a second. Waits for the end of a job and collects it."""

KILL_SCRIPT = (
    _COMMON
    + r"""
dir=$1 limit=$2
if ! [ -s "$dir/pid" ]; then
    report gone
    exit
fi
end_job 2>/dev/null
await_code
deliver ended && forget
exit 0
"""
)
"""Arguments: directory, limit. Ends a job and collects it."""

OUTPUT_SCRIPT = (
    _COMMON
    + r"""
dir=$1 limit=$2
if [ -d "$dir" ]; then
    deliver running
else
    report gone
fi
exit 0
"""
)
"""Arguments: directory, limit. Prints what a job has printed so far."""

ENDED_SCRIPT = r"""
[ ! -d "$1" ] || [ -s "$1/code" ]
"""
"""Argument: directory. Exit code 0 when the job has ended."""

END_SCRIPT = (
    _COMMON
    + r"""
exec 2>/dev/null
for dir; do
    for pause in 0.02 0.03 0.05 0.1; do  # it may be about to start
        [ ! -s "$dir/pid" ] || break
        sleep "$pause"
    done
    [ -d "$dir" ] || continue
    end_job
    await_code
    forget
done
for dir; do
    rm -rf "$dir"
done
exit 0
"""
)
"""Arguments: directories. Ends jobs and removes everything of theirs."""

WRITE_SCRIPT = r"""
path=$1 beside=$2 mode=$3
if [ -d "$path" ]; then
    echo "$path is a directory" >&2
    exit 1
fi
umask 077
if cat >"$beside" && chmod "$mode" "$beside" && mv -f "$beside" "$path"; then
    exit 0
fi
rm -f "$beside"
exit 1
"""
"""Arguments: path, another path beside it, mode in octal. Makes the file from stdin."""

CLOCK_SCRIPT = r"""
case $(date +%N) in
*[!0-9]* | '')  # busybox: no fraction in date, but adjtimex(2) tells it, in microseconds or (8192: STA_NANO) less
    while read -r _; do
        adjtimex | while read -r name value _; do
            case $name in
            status:) [ $((value & 8192)) = 0 ] && format='%s.%06d\n' || format='%s.%09d\n' ;;
            time.tv_sec:) second=$value ;;
            time.tv_usec:) printf "$format" "$second" "$value" ;;
            esac
        done
    done
    ;;
*)
    while read -r _; do
        date +%s.%N
    done
    ;;
esac
"""
"""Prints the time, in seconds since the epoch, for each line it is sent."""
