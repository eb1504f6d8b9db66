from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from labctl.campaign import records
from labctl.cli.report import report
from labctl.errors import SpecError
from labctl.model.result import CampaignRecord
from tests.report.records import matrix_record


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Stands in for the store: remembers which campaign was asked for."""
    ids: list[int | None] = []

    def load(state: Path, campaign_id: int | None) -> CampaignRecord:
        ids.append(campaign_id)
        return matrix_record()

    monkeypatch.setattr(records, "load", load)
    return ids


def _report(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(report, list(arguments), obj=SimpleNamespace(state=state))


def test_prints_the_newest_and_says_how_to_get_more(tmp_path: Path, asked: list[int | None]) -> None:
    result = _report(tmp_path)
    assert result.exit_code == 0, result.output
    assert asked == [None]
    assert "virtio moves the most" in result.output
    assert "labctl report 7 --format html" in result.output


def test_html_has_a_place_of_its_own(tmp_path: Path, asked: list[int | None]) -> None:
    result = _report(tmp_path, "7", "--format", "html")
    assert result.exit_code == 0, result.output
    path = tmp_path / "reports" / "campaign-7.html"
    assert str(path) in result.output
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert asked == [7]


@pytest.mark.parametrize("arguments", [("--format", "json"), ("--json",)])
def test_json_is_for_programs(tmp_path: Path, asked: list[int | None], arguments: tuple[str, ...]) -> None:
    assert json.loads(_report(tmp_path, *arguments).output)["id"] == 7


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", "<!DOCTYPE html>"), ("a.json", "{"), ("a.txt", "Which NIC model"), ("new/a.html", "<")],
)
def test_the_name_of_the_file_decides(tmp_path: Path, asked: list[int | None], name: str, begins: str) -> None:
    result = _report(tmp_path, "-o", str(tmp_path / name))
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_text().startswith(begins)


@pytest.mark.parametrize("form", ["html", "json", "terminal"])
def test_a_file_that_cannot_be_written_is_the_users_matter(tmp_path: Path, asked: list[int | None], form: str) -> None:
    (tmp_path / "file").write_text("in the way")
    result = _report(tmp_path, "--format", form, "-o", str(tmp_path / "file" / "report"))
    assert isinstance(result.exception, SpecError)
    assert "can't be written" in str(result.exception)


def test_two_formats_at_once_are_refused(tmp_path: Path, asked: list[int | None]) -> None:
    assert isinstance(_report(tmp_path, "--json", "--format", "html").exception, SpecError)


def test_without_a_store_it_says_what_to_do(tmp_path: Path) -> None:
    result = _report(tmp_path)
    assert isinstance(result.exception, SpecError)
    assert "labctl run" in str(result.exception)
