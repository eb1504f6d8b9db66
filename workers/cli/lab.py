"""`labctl lab`: the embedded lab up, down, and what there is of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from labctl.errors import SpecError
from labctl.model.lab import Lab
from workers.check import MemberCheck, check_members
from workers.locallab import embedded

DEFAULT_LAB = Path("configs/labs/local.yaml")
"""Taken when no lab file is named and this one is there."""


@click.group()
def lab() -> None:
    """The embedded local lab: hosts in network namespaces on this machine."""


_LAB_FILE = click.argument("lab_file", metavar="[LAB]", required=False, type=click.Path(path_type=Path))


@lab.command()
@_LAB_FILE
def up(lab_file: Path | None) -> None:
    """Bring the lab up, or make good what is missing of it."""
    loaded = _load(lab_file)
    done: list[str] = []

    def say(line: str) -> None:
        done.append(line)
        click.echo(line)

    embedded.up(loaded, say=say)
    click.echo(f"The lab {loaded.name} is up." if done else f"The lab {loaded.name} was up already.")


@lab.command()
@_LAB_FILE
def down(lab_file: Path | None) -> None:
    """Take the lab down; nothing of it stays behind."""
    loaded = _load(lab_file)
    done: list[str] = []
    embedded.down(loaded, say=done.append)
    click.echo(done[-1] if done else f"There is nothing of the lab {loaded.name}.")


@lab.command()
@_LAB_FILE
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.pass_context
def status(context: click.Context, lab_file: Path | None, as_json: bool) -> None:
    """Say what there is of the lab. Exit code 3 unless all of it is up."""
    found = embedded.status(_load(lab_file))
    click.echo(_as_json(found) if as_json else _as_text(found))
    if not found.up:
        context.exit(3)


@lab.command()
@_LAB_FILE
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.pass_context
def check(context: click.Context, lab_file: Path | None, as_json: bool) -> None:
    """Connect to every host and machine; list facts, what is missing, and what to do about it. Exit code 3 then."""
    found = check_members(_load(lab_file))
    if as_json:
        click.echo(json.dumps([asdict(item) for item in found], indent=2))
    else:
        for item in found:
            _say_check(item)
    if any(item.problem for item in found):
        context.exit(3)


def _say_check(item: MemberCheck) -> None:
    first = "something is missing" if item.lacks else item.problem or "ok"
    click.echo(f"{item.name:<12} {item.way:<16} {first}")
    for lack in item.lacks:
        click.echo(f"{'':<29} missing: {lack.what}")
        if lack.todo:
            click.echo(f"{'':<29} what to do: {lack.todo}")
    if item.todo:
        click.echo(f"{'':<29} what to do: {item.todo}")
    for name, value in item.facts.items():
        click.echo(f"{'':<29} {name} = {value}")


def _load(lab_file: Path | None) -> Lab:
    if lab_file is None and not DEFAULT_LAB.exists():
        raise SpecError(
            "No lab file is named.",
            why=f"There is no {DEFAULT_LAB} in the current directory to take instead.",
            todo="Give the path of a lab file with an `embedded:` section.",
        )
    from labctl.spec.lab import load_lab

    return load_lab(lab_file or DEFAULT_LAB)


def _as_json(found: embedded.LabStatus) -> str:
    return json.dumps(
        {
            "lab": found.lab,
            "up": found.up,
            "network": found.network,
            "accelerator": found.accelerator.value if found.accelerator else None,
            "accelerator_why": found.accelerator_why,
            "members": [
                {
                    "name": member.name,
                    "kind": "machine" if member.libvirtd is None else "host",
                    "up": member.up,
                    "namespace": member.namespace,
                    "sshd": member.sshd,
                    "libvirtd": member.libvirtd,
                    "vms": member.vms,
                }
                for member in found.members
            ],
        },
        indent=2,
    )


def _as_text(found: embedded.LabStatus) -> str:
    accelerator = f"{found.accelerator.value}: {found.accelerator_why}" if found.accelerator else "not known yet"
    lines = [
        f"lab {found.lab}: {'up' if found.up else 'not up'}",
        f"network      {_yes(found.network)}",
        f"accelerator  {accelerator}",
    ]
    for member in found.members:
        parts = [f"namespace {_yes(member.namespace)}", f"sshd {_yes(member.sshd)}"]
        if member.libvirtd is not None:
            parts += [f"libvirtd {_yes(member.libvirtd)}", f"VMs {'?' if member.vms is None else member.vms}"]
        lines.append(f"{member.name:<12} {', '.join(parts)}")
    return "\n".join(lines)


def _yes(there: bool) -> str:
    return "up" if there else "down"
