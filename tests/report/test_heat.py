"""The heat map: the darker, the more; the same facts as the bars."""

from __future__ import annotations

from labctl.model.scenario import Scenario
from labctl.report.data import report_of
from labctl.report.heat import STRONGEST, heat_map
from labctl.report.html import render_html
from tests.report.records import demo_campaign, matrix_record


def test_the_cell_that_moves_the_most_is_the_darkest() -> None:
    report = report_of(matrix_record())
    heat = heat_map(report)
    assert heat is not None
    assert heat.columns[0] == "virtio"
    shown = [cell for line in heat.rows for cell in line.cells if cell.row is not None]
    darkest = max(shown, key=lambda cell: cell.shade)
    assert darkest.shade == STRONGEST
    assert darkest.row is not None
    assert darkest.row.summary.mean == max(cell.row.summary.mean or 0 for cell in shown if cell.row is not None)
    by_mean = sorted((cell.row.summary.mean or 0.0, cell.shade) for cell in shown if cell.row is not None)
    assert [shade for _, shade in by_mean] == sorted(shade for _, shade in by_mean)


def test_controls_without_vms_do_not_make_all_others_pale() -> None:
    heat = heat_map(report_of(matrix_record()))
    assert heat is not None
    assert all("host-to-host" not in line.title for line in heat.rows)


def test_a_matrix_of_one_row_has_no_map() -> None:
    record = matrix_record(demo_campaign(scenarios=(Scenario.SAME_HOST,), overrides=()), troubles=False)
    assert heat_map(report_of(record)) is None
    assert 'id="heat"' not in render_html(report_of(record))


def test_a_campaign_without_figures_has_a_map_without_shades() -> None:
    heat = heat_map(report_of(matrix_record(share=0.0)))
    assert heat is None or all(cell.shade == 0 for line in heat.rows for cell in line.cells)
