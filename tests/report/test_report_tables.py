"""CSV, Parquet and Markdown: the facts of the report, read back equal, and no name of the user's is more than a name."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.report.data import report_of
from labctl.report.markdown import render_markdown
from labctl.report.parquet import write_parquet
from labctl.report.tables import Rows, TableData, render_csv, table_of, unguarded
from labctl.report.values import Report
from tests.report.records import demo_campaign, matrix_record

NASTY = ("=HYPERLINK(1)", "<script>alert(1)</script>", "+1", "-2", "@x", "a|b\nc", '"quoted"', "🚀 emoji", "'=kept'")


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(matrix_record())


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def named(report: Report, name: str) -> Report:
    return replace(report, name=name, lab=name, question=name, headline=name)


@pytest.mark.parametrize("rows", list(Rows))
def test_csv_reads_back_equal(report: Report, rows: Rows) -> None:
    table = table_of(report, rows)
    read = read_csv(render_csv(table))
    assert tuple(read[0]) == table.columns
    for line, row in zip(read, table.rows, strict=True):
        for name, value in row.items():
            if value is None:
                assert line[name] == ""
            elif isinstance(value, str):
                assert unguarded(line[name]) == value
            else:
                assert type(value)(line[name]) == value, name


def test_there_is_a_row_for_every_run_and_every_cell(report: Report) -> None:
    assert len(table_of(report, Rows.CELLS).rows) == len(report.rows)
    runs = table_of(report, Rows.RUNS).rows
    assert len(runs) == sum(len(row.runs) for row in report.rows)
    assert [row["sequence"] for row in runs] == sorted(int(row["sequence"] or 0) for row in runs)


def test_flags_travel_with_the_figure_into_every_table(report: Report) -> None:
    kinds = {flag.kind for row in report.rows for flag in row.flags}
    cells = {kind for row in table_of(report, Rows.CELLS).rows for kind in str(row["flags"] or "").split()}
    assert cells == kinds
    of_runs = {(run, flag.kind) for row in report.rows for flag in row.flags for run in flag.runs}
    told = {(row["run"], kind) for row in table_of(report, Rows.RUNS).rows for kind in str(row["flags"] or "").split()}
    assert of_runs <= told
    page = render_markdown(report)
    assert all(f"**{kind.replace('-', chr(92) + '-')}**" in page for kind in kinds)


@pytest.mark.parametrize("name", NASTY)
def test_no_spreadsheet_takes_a_name_for_a_formula(report: Report, name: str) -> None:
    (line, *_) = read_csv(render_csv(table_of(named(report, name), Rows.CELLS)))
    assert not line["campaign_name"].startswith(("=", "+", "-", "@"))
    assert unguarded(line["campaign_name"]) == name


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=30))
def test_any_text_reads_back_from_csv(text: str) -> None:
    table = TableData(columns=("name",), rows=({"name": text}, {"name": "end"}))
    first, _ = csv.reader(io.StringIO(render_csv(table), newline="")), None
    lines = list(first)
    assert unguarded(lines[1][0]) == text if text else lines[1] in ([""], [])


@pytest.mark.parametrize("name", NASTY)
def test_no_name_is_markup_in_markdown(report: Report, name: str) -> None:
    page = render_markdown(named(report, name))
    assert not re.search(r"(?<!\\)<", page)
    heading = page.splitlines()[0].removeprefix("# ")
    assert re.sub(r"\\(.)", r"\1", heading) == " ".join(name.split())
    columns = {line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")}
    assert len(columns) <= 2, "of the matrix and of the migrations"


@pytest.mark.parametrize("rows", list(Rows))
def test_parquet_reads_back_equal(report: Report, rows: Rows, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = table_of(report, rows)
    write_parquet(table, tmp_path / "table.parquet")
    assert parquet.read_table(tmp_path / "table.parquet").to_pylist() == [dict(row) for row in table.rows]


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_campaign_that_is_not_done_has_tables_too(share: float, tmp_path: Path) -> None:
    report = report_of(matrix_record(demo_campaign(), share=share))
    for rows in Rows:
        assert read_csv(render_csv(table_of(report, rows))) or not table_of(report, rows).rows
        write_parquet(table_of(report, rows), tmp_path / f"{rows}.parquet")
    assert "runs" in render_markdown(report)
