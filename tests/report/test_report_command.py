from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import Context
from labctl.cli.report import report
from labctl.errors import SpecError
from labctl.model.result import CampaignRecord
from labctl.store import Store, open_store
from tests.report.records import matrix_record


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A store in which every campaign is the same; remembers which ones were asked for. The newest is campaign 7."""
    ids: list[int] = []

    def record(store: Store, campaign_id: int) -> CampaignRecord:
        ids.append(campaign_id)
        return matrix_record()

    monkeypatch.setattr(Store, "record", record)
    monkeypatch.setattr(Store, "newest_campaign", lambda store: 7)
    open_store(tmp_path).close()
    return ids


def _report(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(report, list(arguments), obj=Context(state=state))


def test_prints_the_newest_and_says_how_to_get_more(tmp_path: Path, asked: list[int]) -> None:
    result = _report(tmp_path)
    assert result.exit_code == 0, result.output
    assert asked == [7]
    assert "virtio moves the most" in result.output
    assert "labctl report 7 --format html" in result.output


def test_html_has_a_place_of_its_own(tmp_path: Path, asked: list[int]) -> None:
    result = _report(tmp_path, "5", "--format", "html")
    assert result.exit_code == 0, result.output
    path = tmp_path / "reports" / "campaign-7.html"
    assert str(path) in result.output
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert asked == [5]


@pytest.mark.parametrize("arguments", [("--format", "json"), ("--json",)])
def test_json_is_for_programs(tmp_path: Path, asked: list[int], arguments: tuple[str, ...]) -> None:
    assert json.loads(_report(tmp_path, *arguments).output)["id"] == 7


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", "<!DOCTYPE html>"), ("a.json", "{"), ("a.txt", "Which NIC model"), ("new/a.html", "<")],
)
def test_the_name_of_the_file_decides(tmp_path: Path, asked: list[int], name: str, begins: str) -> None:
    result = _report(tmp_path, "-o", str(tmp_path / name))
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_text().startswith(begins)


@pytest.mark.parametrize("form", ["html", "json", "terminal"])
def test_a_file_that_cannot_be_written_is_the_users_matter(tmp_path: Path, asked: list[int], form: str) -> None:
    (tmp_path / "file").write_text("in the way")
    result = _report(tmp_path, "--format", form, "-o", str(tmp_path / "file" / "report"))
    assert isinstance(result.exception, SpecError)
    assert "can't be written" in str(result.exception)


def test_two_formats_at_once_are_refused(tmp_path: Path, asked: list[int]) -> None:
    assert isinstance(_report(tmp_path, "--json", "--format", "html").exception, SpecError)


def test_without_a_store_it_says_what_to_do(tmp_path: Path) -> None:
    result = _report(tmp_path)
    assert isinstance(result.exception, SpecError)
    assert "There is no store in" in str(result.exception)
