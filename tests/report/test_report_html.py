from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import html as lxml_html

from labctl.model.nic import NIC_MODELS
from labctl.model.outcome import RunState
from labctl.model.result import CampaignRecord, FactSet, RunRecord
from labctl.model.scenario import Scenario
from labctl.report import write_html
from labctl.report.charts import colour_name
from labctl.report.data import report_of
from labctl.report.html import render_html
from tests.report.browser import Page, browser
from tests.report.records import (
    campaign_record,
    cell_record,
    demo_campaign,
    lab_error,
    matrix_record,
    ok_result,
    published_campaign,
)

NASTY = "<script>window.hacked=1</script>\"'&amp;</style>{{7*7}}$x^2$ \N{PILE OF POO}"


def _nasty_record() -> CampaignRecord:
    """Hostile text wherever a user, a guest or a tool can put any."""
    campaign = demo_campaign(
        name=NASTY,
        question=NASTY,
        scenarios=(Scenario.SAME_HOST, Scenario.DURING_MIGRATION),
        factors={"nic_model": ("virtio",), "own.kind": (NASTY, "plain")},
        labels={NASTY: NASTY},
    )
    cells = [
        cell_record({"scenario": scenario, "nic_model": "virtio", "own.kind": kind}, position)
        for position, (scenario, kind) in enumerate(
            (scenario, kind) for scenario in ("same-host", "during-migration") for kind in (NASTY, "plain")
        )
    ]
    runs = []
    for i, cell in enumerate(cells * 2):
        result = ok_result(random.Random(i), dict(cell.levels))
        result = replace(
            result,
            facts=(FactSet(subject=NASTY, when=NASTY, facts={NASTY: NASTY, "other": f"{NASTY}{i}"}),),
            warnings=(NASTY,),
            migrations=tuple(
                replace(one, error=NASTY, stats_source=NASTY, completed=False) for one in result.migrations
            ),
        )
        runs.append(RunRecord(id=i, cell=cell.id, replicate=1 + i // 4, state=RunState.DONE, sequence=i, result=result))
    detail = replace(lab_error().detail, kind=NASTY, what=NASTY, why=NASTY, todo=NASTY, host=NASTY, phase=NASTY)
    runs[0] = replace(runs[0], earlier=(replace(lab_error(), detail=detail),))
    cells.append(cell_record({"scenario": "same-host", "nic_model": "vt-d", "own.kind": NASTY}, 9, reason=NASTY))
    return campaign_record(
        campaign, cells, runs, lab=NASTY, campaign_text=NASTY, lab_text=NASTY, versions={NASTY: NASTY}
    )


def _large_record() -> CampaignRecord:
    return matrix_record(
        demo_campaign(
            factors={"nic_model": tuple(demo_campaign().factors["nic_model"]), "streams": (1, 4), "mtu": (1500, 9000)},
            published="kvm-nic-models-2010",
        ),
        share=0.7,
    )


RECORDS: dict[str, Callable[[], CampaignRecord]] = {
    "demo": matrix_record,
    "nasty": _nasty_record,
    "large": _large_record,
    "published": lambda: matrix_record(published_campaign(), troubles=False),
    "single": lambda: matrix_record(
        demo_campaign(scenarios=(Scenario.SAME_HOST,), factors={"nic_model": ("virtio",)}, repeats=1), troubles=False
    ),
    "not-begun": lambda: replace(matrix_record(share=0.0), runs=()),
    "nothing-applicable": lambda: campaign_record(
        demo_campaign(), [cell_record({"scenario": "same-host", "nic_model": "vt-d"}, reason="No device.")], []
    ),
}


@pytest.fixture(scope="module", params=sorted(RECORDS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("reports") / f"{request.param}.html"
    write_html(RECORDS[request.param](), path)
    return path


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    with browser() as page:
        yield page


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_html(matrix_record(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_noisy_figures_say_so_wherever_they_stand(tmp_path: Path) -> None:
    record = matrix_record(troubles=False)
    noise = "host a: 90% of its processors are busy (limit 0.2)"
    run = next(run for run in record.runs if run.result is not None and run.result.migrations)
    assert run.result is not None
    noisy = replace(run.result, transfers=tuple(replace(one, noisy=noise) for one in run.result.transfers))
    runs = tuple(replace(one, result=noisy) if one is run else one for one in record.runs)
    write_html(replace(record, runs=runs), tmp_path / "noisy.html")
    root = lxml_html.fromstring((tmp_path / "noisy.html").read_text())

    def texts(path: str) -> list[str]:
        return [" ".join(str(one.text_content()).split()) for one in root.xpath(path)]  # type: ignore[union-attr]

    assert sum("*" in text for text in texts("//section[@id='bars']//*[local-name()='svg']")) == 1
    assert any("* flagged" in text for text in texts("//section[@id='bars']/p[@class='legend']"))
    assert texts("//section[@id='bars']//th/b") == ["noisy"]
    assert sum("noisy" in text for text in texts("//td[@class='flags']")) == 1
    assert [text for text in texts("//section[@id='migrations']//p[@class='flag']") if "noisy" in text] == [
        f"noisy hosts were not quiet: {noise}"
    ]
    write_html(record, tmp_path / "quiet.html")
    assert "noisy" not in (tmp_path / "quiet.html").read_text()
    assert "* flagged" not in (tmp_path / "quiet.html").read_text()


def test_asks_for_nothing_outside_of_itself(written: Path) -> None:
    text = written.read_text()
    root = lxml_html.fromstring(text)
    loaded = root.xpath(
        "//@src | //link/@href | //a/@href | //*[local-name()='use']/@*[name()='xlink:href' or name()='href']"
    )
    assert isinstance(loaded, list)
    assert loaded
    assert all(re.match(r"#|data:", str(link)) for link in loaded)
    style = "".join(str(one) for one in root.xpath("//style/text()"))  # type: ignore[union-attr]
    assert "@import" not in style
    assert "url(" not in style
    assert "default-src 'none'" in text


def test_ids_are_unique_and_references_meet_them(written: Path) -> None:
    root = lxml_html.fromstring(written.read_text())
    ids = [str(one) for one in root.xpath("//@id")]  # type: ignore[union-attr]
    assert len(ids) == len(set(ids))
    wanted = {str(one)[1:] for one in root.xpath("//@href") if str(one).startswith("#")}  # type: ignore[union-attr]
    wanted |= set(re.findall(r"url\(#([^)]+)\)", written.read_text()))
    wanted |= {word for one in root.xpath("//@aria-labelledby") for word in str(one).split()}  # type: ignore[union-attr]
    assert wanted <= set(ids)


def test_every_flag_and_every_reason_is_on_the_page() -> None:
    record = matrix_record()
    report = report_of(record)
    root = lxml_html.document_fromstring(render_html(report))
    text = " ".join("".join(str(one) for one in root.itertext()).split())
    for row in report.rows:
        for flag in row.flags:
            assert f"{flag.kind} {row.title}: {flag.what}" in text
    for reason in (group.reason for group in report.not_applicable):
        assert reason in text
    for failure in report.failures:
        for sentence in (failure.what, failure.why, failure.todo):
            assert sentence in text


def test_every_chart_has_words_and_a_table_behind_it() -> None:
    root = lxml_html.fromstring(render_html(report_of(matrix_record())))
    figures = root.xpath("//figure")
    assert isinstance(figures, list)
    assert len(figures) == 5 + 6
    for figure in figures:
        assert figure.xpath("count(.//*[local-name()='svg'][@role='img']/*[local-name()='title'])") == 1  # type: ignore[union-attr]
        assert figure.xpath("count(.//details//table//tbody/tr)") >= 1  # type: ignore[union-attr,operator]


def test_each_nic_model_has_a_colour_of_its_own_in_both_schemes() -> None:
    style = render_html(report_of(matrix_record()))
    light, dark = style.split("prefers-color-scheme: dark")[:2]
    for scheme in (light, dark):
        colours = {model: re.search(rf"--c-{re.escape(colour_name(model))}: (#\w+)", scheme) for model in NIC_MODELS}
        assert all(colours.values())
        assert len({match[1] for match in colours.values() if match}) == len(NIC_MODELS)


_OVERLAPS = """
Array.from(document.querySelectorAll('svg')).flatMap(svg => {
  const outer = svg.getBoundingClientRect();
  const boxes = Array.from(svg.querySelectorAll('text')).map(text => [text.textContent, text.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([a, one], i) => {
    if (one.left < outer.left - 1 || one.right > outer.right + 1) found.push('cut: ' + a);
    boxes.slice(i + 1).forEach(([b, two]) => {
      const x = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const y = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (x > 1 && y > 3) found.push(a + ' over ' + b);
    });
  });
  return found;
})
"""
_FAINT = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const own = Array.from(element.childNodes).some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || ['SCRIPT', 'STYLE', 'title'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const colour = element.tagName === 'text' ? style.fill : style.color;
    const [high, low] = [luminance(parse(colour)), luminance(behind(element))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) faint.add(element.tagName + '.' + element.className + ' ' + contrast.toFixed(2));
  }
  return Array.from(faint);
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_opens_quietly_and_reads_well(written: Path, page: Page, width: int, dark: bool) -> None:
    page.complaints.clear()
    page.requests.clear()
    page.open(written, width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == [written.absolute().as_uri()]
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
    assert page.evaluate(_OVERLAPS) == []
    assert page.evaluate(_FAINT) == []
    smallest = page.evaluate(
        "Math.min(...Array.from(document.querySelectorAll('svg text'), e => e.getBoundingClientRect().height), 99)"
    )
    assert smallest >= 9, "text of charts is too small to read"


def _column(page: Page, number: int) -> list[str]:
    cells: list[str] = page.evaluate(
        f"Array.from(document.querySelectorAll('#matrix-table tbody tr:not([hidden])'), r => r.cells[{number}].textContent)"
    )
    return cells


def test_sorts_by_any_column(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(matrix_record(), path)
    page.open(path)
    header = "document.querySelectorAll('#matrix-table thead th')[2]"
    means = sorted(row.summary.mean or 0.0 for row in report_of(matrix_record()).rows)
    page.evaluate(f"{header}.querySelector('button').click()")
    first = page.evaluate(
        "Array.from(document.querySelectorAll('#matrix-table tbody tr'), r => +r.cells[2].dataset.sort)"
    )
    assert first == pytest.approx(means)
    assert page.evaluate(f"{header}.getAttribute('aria-sort')") == "ascending"
    page.evaluate(f"{header}.querySelector('button').click()")
    second = page.evaluate(
        "Array.from(document.querySelectorAll('#matrix-table tbody tr'), r => +r.cells[2].dataset.sort)"
    )
    assert second == pytest.approx(means[::-1])
    assert page.evaluate(f"{header}.getAttribute('aria-sort')") == "descending"
    assert page.evaluate(f"{header}.querySelector('button').tabIndex") == 0


def test_filters_by_level_and_by_words(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(matrix_record(), path)
    page.open(path)
    select = "document.querySelectorAll('.filters select')[1]"
    page.evaluate(f"{select}.value = 'e1000'; {select}.dispatchEvent(new Event('change'))")
    assert _column(page, 1) == ["e1000"] * 4
    assert page.evaluate("document.getElementById('shown').textContent") == "4 of 18 cells"
    words = "document.getElementById('filter')"
    page.evaluate(f"{words}.value = 'VM-to'; {words}.dispatchEvent(new Event('input'))")
    assert _column(page, 0) == ["vm-to-host"]
    page.evaluate(f"{words}.value = 'nothing-like-it'; {words}.dispatchEvent(new Event('input'))")
    assert _column(page, 0) == []


def test_prints_on_paper_without_controls_and_with_all_facts(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(matrix_record(), path)
    page.open(path, media="print", dark=True)
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('#facts details:not([open])').length") == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('#facts details[open]').length") == 0
    printed = page.pdf()
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
