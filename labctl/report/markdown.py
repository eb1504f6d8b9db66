"""The report as Markdown, for wikis, tickets and merge requests: the same facts as the page, without its charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labctl.report import units
from labctl.report.cost_words import COLUMNS, cost_row
from labctl.report.finding_words import findings_words
from labctl.report.migration_words import first_words, words_of
from labctl.report.values import Report, Row
from labctl.report.verdict_words import verdict_words

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$-])")
"""What Markdown, or HTML in it, may take for markup (https://spec.commonmark.org/0.31.2/#backslash-escapes)."""


def render_markdown(report: Report) -> str:
    """The whole report. No name of the user's becomes markup."""
    return "\n".join([*_head(report), *_matrix(report), *_flags(report), *_rest(report)]) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"# {_text(report.question)}"
    yield ""
    for line in (report.pretence, report.notice):
        if line:
            yield f"**{_text(line)}**"
            yield ""
    yield f"{_text(report.headline)} {_text(report.status)}"
    yield ""
    began, ended = units.moment(report.started), units.moment(report.ended)
    yield f"Campaign {report.id}, {_text(report.name)}, in lab {_text(report.lab)}: {_text(began)} to {_text(ended)}."
    yield ""


def _matrix(report: Report) -> Iterator[str]:
    comparing = [name for name in report.factors if any(row.comparison(name) for row in report.rows)]
    head = [*(name.replace("_", " ") for name in report.factors), "mean", "95 % interval", "median", "spread", "n"]
    head += [f"against {units.level(name, report.baselines[name])}" for name in comparing]
    head += [*(["verdict"] if _is_judged(report) else []), "flags"]
    yield "## Every cell"
    yield ""
    yield from _table(head, [_row(report, row, comparing) for row in report.rows])


def _row(report: Report, row: Row, comparing: Sequence[str]) -> list[str]:
    one = row.summary
    levels = [units.level(name, row.levels[name]) if name in row.levels else "" for name in report.factors]
    figures = [units.rate(one.mean), units.rate_interval(one.low, one.high), units.rate(one.median)]
    figures.append(units.percent(100 * one.cv, signed=False) if one.cv is not None else units.NOTHING)
    figures.append(str(one.n) if one.n == row.planned else f"{one.n} of {row.planned}")
    verdict = [verdict_words(row.verdict)] if _is_judged(report) else []
    return levels + figures + [_change(row, name) for name in comparing] + verdict + [", ".join(_kinds(row))]


def _is_judged(report: Report) -> bool:
    return any(row.verdict is not None for row in report.rows)


def _change(row: Row, factor: str) -> str:
    comparison = row.comparison(factor)
    if comparison is None:
        return ""
    why = units.untold(comparison.ratio)
    return units.change(comparison.ratio) + (f"; {why}" if why else "")


def _kinds(row: Row) -> list[str]:
    return list(dict.fromkeys(flag.kind for flag in row.flags))


def _flags(report: Report) -> Iterator[str]:
    flags = [(row, flag) for row in report.rows for flag in row.flags]
    if not flags:
        return
    yield "## Flags"
    yield ""
    for row, flag in flags:
        runs = f" (run {', '.join(map(str, flag.runs))})" if flag.runs else ""
        yield f"- **{_text(flag.kind)}**: {_text(row.title)}: {_text(flag.what)}{_text(runs)}"
    yield ""


def _rest(report: Report) -> Iterator[str]:
    yield from _costs(report)
    yield from _migrations(report)
    yield from _items("Claims", [f"{one.verdict.value}: {one.text} (checked as: {one.rule})" for one in report.claims])
    yield from _items("Beside the factors", findings_words(report.findings))
    yield from _items("Not applicable", [f"{one.reason}: {', '.join(one.cells)}" for one in report.not_applicable])
    yield from _items(
        "What failed",
        [f"{one.fault}: {one.counted}: {one.what} {one.why} {one.todo}".strip() for one in report.failures],
    )
    missing = [f"{one.title}: {one.done} of {one.planned} runs" for one in report.completeness.missing]
    yield from _items("Missing", missing)
    yield from _items("Notes", report.notes)
    yield from _items("Method", [f"{name}: {words}" for name, words in report.method])


def _costs(report: Report) -> Iterator[str]:
    rows = [[row.title, *cost_row(row.cost)] for row in report.rows if row.cost is not None]
    if rows:
        yield "## What it cost"
        yield ""
        yield from _table(["cell", *COLUMNS], rows)


def _migrations(report: Report) -> Iterator[str]:
    if not report.migrations:
        return
    head = ["run", "cell", "before", "during", "after", "longest stall", "dip", "back", "not moved", "session survived"]
    head += ["hypervisor: downtime", "total"]
    rows = []
    for row in report.migrations:
        words = words_of(row.effect)
        line = [
            str(row.run),
            row.title,
            words.before,
            words.during,
            words.after,
            words.stall,
            words.dip,
            words.recovery,
        ]
        line += [words.not_moved, words.survived, words.hypervisor_downtime, words.hypervisor_total]
        rows.append(line)
    yield "## Migrations"
    yield ""
    yield "The hypervisor's downtime is its own word and no measure of the gap that traffic saw."
    yield ""
    yield from _table(head, rows)
    for one in report.first_migrations:
        yield _text(first_words(one))
        yield ""


def _items(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield f"## {title}"
    yield ""
    for item in items:
        yield f"- {_text(item)}"
    yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(_text(name) for name in head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_text(value) for value in row)} |"
    yield ""


def _text(words: str) -> str:
    """Text that Markdown takes for nothing but text, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(words.split()))
