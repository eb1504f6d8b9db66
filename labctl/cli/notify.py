"""`labctl notify`: send a message to try out where news of campaigns will go."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from pydantic import TypeAdapter, ValidationError

from labctl.campaign.delivery import Message, send_now
from labctl.errors import LabError, SpecError
from labctl.model.lab import SecretRef
from labctl.spec.references import SECRETS, NewsAddress, placed

TRIAL = Message(
    title="labctl: a trial",
    text="If you read this, news of campaigns with this `notify` will reach you.",
)


@click.command()
@click.argument("references", metavar="REFERENCE...", nargs=-1, required=True)
def notify(references: tuple[str, ...]) -> None:
    """Send a trial message to where REFERENCE leads, as `notify` of a campaign file has it.

    A reference is file:PATH, env:NAME or keyring:SERVICE/USER. What it leads to is a URL of apprise, such as
    mailtos://USER:PASSWORD@HOST?to=ADDRESS or slack://TOKENS (https://appriseit.com/services/).
    """
    code = 0
    for place in [_place(reference) for reference in references]:
        try:
            send_now(place, TRIAL)
            click.echo(f"{place}: the message was taken. See whether it arrives.")
        except LabError as error:
            click.echo(f"labctl: {error}", err=True)
            code = error.exit_code
    sys.exit(code)


def _place(reference: str) -> SecretRef:
    """The reference, or `SpecError` without it: it may be the secret itself."""
    try:
        place: SecretRef = TypeAdapter(NewsAddress).validate_python(reference)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise SpecError("That is no reference to a URL.", why=why, todo=f"Give {SECRETS}.") from None
    return placed(place, Path.cwd())
