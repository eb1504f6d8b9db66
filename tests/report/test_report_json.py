from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from labctl.cli.schema import schema
from labctl.report import to_json
from labctl.report.data import report_of
from tests.report.records import demo_campaign, matrix_record, published_campaign


def test_holds_the_facts_of_the_report() -> None:
    record = matrix_record()
    report, document = report_of(record), json.loads(to_json(record))
    assert document["schema"] == "labctl.report/1"
    assert document["headline"] == report.headline
    assert [row["summary"]["mean"] for row in document["rows"]] == [row.summary.mean for row in report.rows]
    virtio = document["rows"][0]
    assert virtio["levels"] == {"scenario": "same-host", "nic_model": "virtio"}
    (comparison,) = virtio["comparisons"]
    assert comparison["ratio"]["percent"] == pytest.approx(100 * (comparison["ratio"]["ratio"] - 1))
    assert comparison["ratio"]["difference"] == "faster"
    assert comparison["ratio"]["percent_low"] < comparison["ratio"]["percent"] < comparison["ratio"]["percent_high"]
    assert [flag["kind"] for flag in document["rows"][2]["flags"]] == ["stalled", "sides-apart"]
    migration = document["migrations"][0]
    assert migration["effect"]["stall"]["end"] > migration["effect"]["stall"]["start"]
    assert migration["effect"]["migration"]["downtime_ms"] == 210
    assert len(migration["points"]) == 300
    assert document["failures"][0]["fault"] == "system under test"
    assert document["not_applicable"][0]["cells"] == ["same-host · vt-d"]


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_is_strict_json_in_every_state(share: float) -> None:
    def refuse(word: str) -> float:
        raise AssertionError(word)

    for campaign in (demo_campaign(), published_campaign()):
        json.loads(to_json(matrix_record(campaign, share=share)), parse_constant=refuse)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_published_schema_holds_in_every_state(share: float) -> None:
    published = json.loads(CliRunner().invoke(schema, ["report"]).output)
    jsonschema.Draft202012Validator.check_schema(published)
    for campaign in (demo_campaign(), published_campaign()):
        jsonschema.validate(json.loads(to_json(matrix_record(campaign, share=share))), published)


def test_the_published_schema_refuses_what_is_no_report() -> None:
    published = json.loads(CliRunner().invoke(schema, ["report"]).output)
    document = json.loads(to_json(matrix_record()))
    del document["rows"][0]["summary"]["n"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, published)
