from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.spec.source import parse_document
from tests.desk import SMALL, Desk, outcomes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

CAMPAIGN = Path(__file__).parents[2] / "configs" / "campaigns" / "kvm-nic-models-2010.yaml"


def test_the_experiment_of_2010_runs_and_its_claims_are_checked(desk: Desk) -> None:
    document: dict[str, Any] = parse_document(
        CAMPAIGN.read_text(), file=str(CAMPAIGN), what="campaign", base=CAMPAIGN.parent
    ).plain()
    document |= SMALL
    document["factors"] |= {"nic_model": ["virtio", "vt-d", "e1000"], "streams": [1]}
    document["include"] = [{"scenario": "host-to-host", "peer": ["own-host", "box"], "streams": 1}]
    document["settings"] |= {"seconds": 1}
    ended = desk.run(desk.file("short.yaml", document)).wait(seconds=800)
    assert ended.code == 0, ended.said
    assert outcomes(desk.record()) == {"ok": 6}
    for run in desk.record().runs:
        assert run.result is not None
        assert [transfer.reading.side for transfer in run.result.transfers] == ["receiver"], (
            "servers had their last word"
        )
    said = json.loads(desk.labctl("report", "1", "--json").out)
    assert said["published"] == "kvm-nic-models-2010"
    assert len(said["claims"]) == 3
    slower = next(claim for claim in said["claims"] if "much slower" in claim["text"])
    assert len(slower["pairs"]) == 2, "e1000 against virtio, by peer"
    assert all(pair["ratio"]["ratio"] < 1 for pair in slower["pairs"])
    for claim in said["claims"]:
        assert claim["text"] in desk.labctl("report", "1").out.replace("\n", " ")
    assert sum(len(group["cells"]) for group in said["not_applicable"]) == 2
    desk.assert_nothing_left()
