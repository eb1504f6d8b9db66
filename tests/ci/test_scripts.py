"""The scripts of the set-up, the demo and continuous integration, where they can be wrong without anybody noticing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

SCRIPTS = Path(__file__).parents[2] / ".ci"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


def shell(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text, "bash", *arguments], capture_output=True, text=True, check=False)


@needs_root
def test_without_root_the_set_up_says_so_and_what_to_do() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        script = shutil.copy(SCRIPTS / "setup", folder)
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        done = subprocess.run([*nobody, "bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs root" in done.stderr
    assert "sudo make setup" in done.stderr


POLICY = 'source "$1"; POLICY=$2; forbid_new_services libvirt-daemon-system redis-server'


@pytest.mark.parametrize(
    ("service", "answer"),
    [
        ("libvirtd", 101),
        ("libvirtd.service", 101),
        ("libvirtd-ro.socket", 101),
        ("virtlogd.socket", 101),
        ("redis-server", 101),
        ("ssh", 0),
        ("ssh.service", 0),
        ("nginx", 0),
    ],
)
def test_only_services_of_new_packages_are_kept_from_starting(service: str, answer: int, tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    shell(POLICY, str(SCRIPTS / "setup"), str(policy)).check_returncode()
    assert subprocess.run([policy, service, "start"], check=False).returncode == answer


def test_the_machines_own_policy_is_asked_meanwhile_and_back_afterwards(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    own = "#!/bin/sh\n[ $1 != nginx ] || exit 104\n"
    policy.write_text(own)
    policy.chmod(0o755)
    # A set-up that was killed and started again finds a policy of labctl's, and must not keep it for the machine's.
    for _ in range(2):
        shell(f"{POLICY}; allow_services; forbid_new_services redis-server", str(SCRIPTS / "setup"), str(policy))
        assert subprocess.run([policy, "nginx", "start"], check=False).returncode == 104
        assert subprocess.run([policy, "redis-server", "start"], check=False).returncode == 101
        shell('source "$1"; POLICY=$2; allow_services', str(SCRIPTS / "setup"), str(policy)).check_returncode()
        assert policy.read_text() == own
        assert policy.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["policy-rc.d"]


def test_without_a_policy_before_there_is_none_afterwards(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    shell(f"{POLICY}; allow_services", str(SCRIPTS / "setup"), str(policy)).check_returncode()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The demo in a tree of its own, with a `labctl` that writes down how it is called and fails as it is told."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPTS / "demo", tmp_path / ".ci" / "demo")
    labctl = tmp_path / ".venv" / "bin" / "labctl"
    labctl.parent.mkdir(parents=True)
    labctl.write_text(
        '#!/bin/bash\necho "$1 $2" >>calls\ncase "$1 $2" in\n'
        '"lab status") exit "${STATUS:-3}";;\n"lab up") exit "${UP:-0}";;\n"lab down") exit "${DOWN:-0}";;\n'
        'run*) [ -z "${SLEEP:-}" ] || { trap "exit 130" INT; touch running; sleep 30 & wait; }; exit "${RUN:-0}";;\nesac\n'
    )
    labctl.chmod(0o755)
    return tmp_path


CAMPAIGN = "run configs/campaigns/kvm-nic-models.yaml"


@pytest.mark.parametrize(
    ("told", "code", "calls"),
    [
        ({}, 0, ["lab status", "lab up", CAMPAIGN, "lab down"]),
        ({"RUN": "1"}, 1, ["lab status", "lab up", CAMPAIGN, "lab down"]),
        ({"UP": "3"}, 3, ["lab status", "lab up", "lab down"]),
        ({"DOWN": "3"}, 3, ["lab status", "lab up", CAMPAIGN, "lab down"]),
        ({"RUN": "1", "DOWN": "3"}, 1, ["lab status", "lab up", CAMPAIGN, "lab down"]),
        ({"STATUS": "0", "RUN": "1"}, 1, ["lab status", CAMPAIGN]),
    ],
    ids=str,
)
def test_the_demo_keeps_the_exit_code_and_takes_its_lab_down(
    told: dict[str, str], code: int, calls: list[str], demo: Path
) -> None:
    done = subprocess.run([demo / ".ci" / "demo"], env=os.environ | told, check=False)
    assert done.returncode == code
    assert (demo / "calls").read_text().splitlines() == calls


def test_ctrl_c_in_the_demo_takes_its_lab_down(demo: Path) -> None:
    process = subprocess.Popen([demo / ".ci" / "demo"], env=os.environ | {"SLEEP": "1"}, start_new_session=True)
    while not (demo / "running").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert (demo / "calls").read_text().splitlines()[-1] == "lab down"


def test_the_last_line_of_ci_is_the_test_runners_and_its_exit_code_that_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPTS / "run", tmp_path / ".ci" / "run")
    closing = "=========== 1 failed, 12 passed in 3.20s ==========="
    (tmp_path / "Makefile").write_text(f"test:\n\t@echo checking; echo '{closing}'; exit 1\n")
    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == closing


def test_the_closing_line_adds_both_parts_of_the_tests_up(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("FAILED tests/x.py - in 3s\n3 failed, 100 passed, 1 skipped in 12.50s\n")
    second.write_text("===== 50 passed, 2 deselected, 1 error in 100.25s (0:01:40) =====\n\n")
    said = shell('source "$1"; closing_line "$2" "$3"', str(SCRIPTS / "tests"), str(first), str(second))
    assert said.stdout == "3 failed, 150 passed, 1 skipped, 1 errors in 112.75s\n"
