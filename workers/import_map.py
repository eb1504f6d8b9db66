"""The file that says what outputs made by hand are of: which cell each belongs to, and what is known of their hosts.

```yaml
import: nics-2019                      # name of the campaign
lab: rack-2019                         # what the lab was called
scenario: same-host                    # of all outputs that say nothing else
settings: {seconds: 30, streams: 4}    # the same for all
hosts: {esx1: {driver: ixgbe, firmware: "3.1"}}
outputs:
  - files: vmxnet3/*.json              # below the folder; `*`, `?` and `**` as in shells
    levels: {nic_model: vmxnet3}
    hosts: [esx1]
  - files: e1000/*.txt
    tool: iperf2                       # told by the content when left out
    levels: {nic_model: e1000}
    server: "{stem}.server.txt"        # what else the same transfer printed, beside each file
    replicate: 'run(\\d+)'              # else they are counted in the order of their names
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from labctl.model.scenario import Scenario
from labctl.spec.fields import Name, Strict, Text, complaint
from labctl.spec.levels import Settings
from labctl.spec.problems import problems_of
from labctl.spec.source import parse_document, read_text, refusal

WHAT = "import map"


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise complaint(f"is no regular expression: {error}") from None
    if groups != 1:
        raise complaint("must have one group, which matches the number", allowed="such as run(\\d+)")
    return text


def _below(text: str) -> str:
    if Path(text).is_absolute() or ".." in Path(text).parts:
        raise complaint("must lie below the folder", allowed="a path or pattern without .. and leading /")
    return text


Below = Annotated[Text, AfterValidator(_below)]


class OutputsField(Strict):
    """Some of the outputs, all of one cell."""

    files: Below
    tool: Text = ""
    scenario: Annotated[Scenario, Field(strict=False)] | None = None
    levels: Settings = Field(default_factory=dict)
    hosts: list[Name] = Field(default_factory=list)
    replicate: Annotated[Text, AfterValidator(_pattern)] | None = None
    server: Below = ""
    stderr: Below = ""
    command: Text = ""
    role: Text = "client"
    seconds: float | None = Field(default=None, gt=0, strict=False)
    """Seconds that were asked for, where the output itself doesn't tell; else the setting `seconds`, if given."""


class ImportMap(Strict):
    """The whole file."""

    name: Name = Field(alias="import")
    lab: Name
    scenario: Annotated[Scenario, Field(strict=False)] = Scenario.HOST_TO_HOST
    question: Text = ""
    settings: Settings = Field(default_factory=dict)
    hosts: dict[Name, dict[Name, Text]] = Field(default_factory=dict)
    outputs: list[OutputsField] = Field(min_length=1)


def load_map(path: Path) -> tuple[ImportMap, str]:
    """The map in a file, and its text. Raises `SpecError` with every mistake at its place."""
    text = read_text(path, what=WHAT)
    document = parse_document(text, file=str(path), what=WHAT, base=path.parent.absolute())
    try:
        return ImportMap.model_validate(document.plain()), text
    except ValidationError as error:
        raise refusal(document.file, WHAT, problems_of(error, document, ImportMap)) from error
