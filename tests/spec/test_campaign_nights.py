"""What a campaign file says of nights: windows, adaptive repeats, anchors, quiet waits, priorities, notifications."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import Problem, SpecError
from labctl.model.campaign import Adaptive, Anchor, Campaign, NotQuiet, QuietWait
from labctl.model.lab import SecretRef
from labctl.model.window import DAY, Day, Windows, WindowTime
from labctl.spec.campaign import load_campaign, parse_campaign, with_window

NIGHT = WindowTime(start=22 * 60, end=6 * 60)
SUNDAY = WindowTime(start=10 * 60, end=12 * 60, days=frozenset({Day.SUN}))

FULL = """\
campaign: nights
scenarios: [same-host, cross-host]
factors:
  nic_model: [virtio, e1000]
  streams: [1, 4]
include:
  - {scenario: host-to-host, peer: own-host}
repeats: {min: 3, max: 10, within: 5%, budget: 4h}
priority: 10
zone: Europe/Dublin
windows:
  - {days: [mon, tue, wed, thu], time: 22:00-06:00}
  - {days: [fri], time: 20:00-24:00}
  - {days: sat, time: 00:00-24:00}
blackout: [2026-12-24, 2026-12-25]
until: 2026-12-31
anchor: {cell: {scenario: same-host, nic_model: virtio, streams: 1}, every: 20}
quiet: {wait: 90 s, then: skip}
back_off: 0
notify: ["env:LABCTL_NOTIFY", "file:news.url"]
"""

SHORT = "campaign: x\nscenarios: [same-host]\n"


def mistakes(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_campaign(text, file="c.yaml")
    assert caught.value.exit_code == 2
    return caught.value.problems


def edited(old: str, new: str) -> str:
    assert FULL.count(old) == 1
    return FULL.replace(old, new)


def test_everything_that_a_campaign_file_can_say_of_nights(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FULL)
    campaign = load_campaign(path)
    assert (campaign.repeats, campaign.adaptive) == (3, Adaptive(maximum=10, within=0.05, budget=4 * 3600.0))
    assert campaign.priority == 10
    assert campaign.windows == Windows(
        zone="Europe/Dublin",
        times=(
            WindowTime(start=22 * 60, end=6 * 60, days=frozenset({Day.MON, Day.TUE, Day.WED, Day.THU})),
            WindowTime(start=20 * 60, end=DAY, days=frozenset({Day.FRI})),
            WindowTime(start=0, end=DAY, days=frozenset({Day.SAT})),
        ),
        blackout=frozenset({date(2026, 12, 24), date(2026, 12, 25)}),
        until=date(2026, 12, 31),
    )
    assert campaign.anchor == Anchor(levels={"scenario": "same-host", "nic_model": "virtio", "streams": 1}, every=20)
    assert campaign.quiet == QuietWait(wait=90.0, then=NotQuiet.SKIP)
    assert campaign.back_off == 0.0
    assert campaign.notify == (
        SecretRef(scheme="env", locator="LABCTL_NOTIFY"),
        SecretRef(scheme="file", locator=str(tmp_path / "news.url")),
    )


def test_without_any_of_it_a_campaign_is_as_before() -> None:
    campaign = parse_campaign(SHORT)
    assert campaign == replace(
        campaign, repeats=3, adaptive=None, priority=0, windows=None, anchor=None, quiet=QuietWait(), notify=()
    )
    assert campaign.back_off == Campaign.back_off
    assert parse_campaign(SHORT + "repeats: 7\n").repeats == 7


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("22:00-06:00", NIGHT),
        ('"22:00-06:00"', NIGHT),
        ("22:00 - 06:00", NIGHT),
        ("22:00-6:00", NIGHT),
        ("6:30-07:00", WindowTime(start=390, end=420)),
        ("00:00-24:00", WindowTime(start=0, end=DAY)),
        ("20:00-00:00", WindowTime(start=1200, end=DAY)),
        ("20:00-24:00", WindowTime(start=1200, end=DAY)),
        ("23:59-00:01", WindowTime(start=1439, end=1)),
    ],
)
def test_s1_a_window_is_read_the_same_with_and_without_quotes(written: str, expected: WindowTime) -> None:
    campaign = parse_campaign(f"{SHORT}window: {written}\nzone: UTC\n")
    assert campaign.windows == Windows(zone="UTC", times=(expected,))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[22:00-06:00]", (NIGHT,)),
        ("22:00-06:00", (NIGHT,)),
        ("{time: 22:00-06:00}", (NIGHT,)),
        ('["22:00 - 06:00", {days: [sun], time: 10:00-12:00}]', (NIGHT, SUNDAY)),
    ],
)
def test_windows_of_every_day_are_written_as_their_times(written: str, expected: tuple[WindowTime, ...]) -> None:
    campaign = parse_campaign(f"{SHORT}windows: {written}\nzone: UTC\n")
    assert campaign.windows == Windows(zone="UTC", times=expected)


def test_dates_alone_leave_all_other_days_open() -> None:
    campaign = parse_campaign(SHORT + "zone: UTC\nuntil: 2026-12-20\n")
    assert campaign.windows == Windows(zone="UTC", times=(WindowTime(start=0, end=DAY),), until=date(2026, 12, 20))


@pytest.mark.parametrize(
    ("old", "new", "key", "value", "near"),
    [
        ("Europe/Dublin", "¦Europe/Dubln", "zone", "Europe/Dubln", "Europe/Dublin"),
        ("Europe/Dublin", "¦dublin", "zone", "dublin", "Europe/Dublin"),
        ("Europe/Dublin", "¦America/New York", "zone", "America/New York", "America/New_York"),
        ("Europe/Dublin", "¦localtime", "zone", "localtime", ""),
        ("Europe/Dublin", "¦../../etc/passwd", "zone", "../../etc/passwd", ""),
        ("zone: Europe/Dublin\n", "", "windows", "", ""),
        ("[mon, tue, wed, thu]", "[mon, ¦tues, wed]", "windows[0].days[1]", "tues", "tue"),
        ("[mon, tue, wed, thu]", "¦[mon, tue, mon]", "windows[0].days", "[mon, tue, mon]", ""),
        ("[mon, tue, wed, thu]", "¦[]", "windows[0].days", "[]", ""),
        ("{days: sat", "{¦day: sat", "windows[2].day", "", "days"),
        ("20:00-24:00", "¦20:00-20:00", "windows[1].time", "20:00-20:00", "00:00-24:00"),
        ("20:00-24:00", "¦24:00-20:00", "windows[1].time", "24:00-20:00", ""),
        ("20:00-24:00", "¦20:00-24:01", "windows[1].time", "20:00-24:01", ""),
        ("20:00-24:00", "¦20-24", "windows[1].time", "20-24", ""),
        ("20:00-24:00", "¦1200", "windows[1].time", "1200", ""),
        ("20:00-24:00", "¦[20:00]", "windows[1].time", "[20:00]", ""),
        ("{days: [fri], time: 20:00-24:00}", "¦20:00", "windows[1]", "20:00", ""),
        ("{days: [fri], time: 20:00-24:00}", "¦20:00-20:00", "windows[1]", "20:00-20:00", "00:00-24:00"),
        ("{days: [fri], time: 20:00-24:00}", "¦[20:00-24:00]", "windows[1]", "[20:00-24:00]", ""),
        ("[2026-12-24, 2026-12-25]", "[2026-12-24, ¦2026-12-32]", "blackout[1]", "2026-12-32", ""),
        ("[2026-12-24, 2026-12-25]", "¦24.12.2026", "blackout", "24.12.2026", ""),
        ("[2026-12-24, 2026-12-25]", "¦[2026-12-24, 2026-12-24]", "blackout", "[2026-12-24, 2026-12-24]", ""),
        ("until: 2026-12-31", "until: ¦20261231", "until", "20261231", ""),
        ("until: 2026-12-31", "until: ¦2026-02-29", "until", "2026-02-29", ""),
        ("min: 3", "min: ¦1", "repeats.min", "1", ""),
        ("max: 10", "max: ¦3", "repeats.max", "3", ""),
        ("max: 10", "¦maximum: 10", "repeats.maximum", "", "max"),
        ("within: 5%", "within: ¦5", "repeats.within", "5", ""),
        ("within: 5%", "within: ¦0%", "repeats.within", "0%", ""),
        ("budget: 4h", "budget: ¦4 nights", "repeats.budget", "4 nights", ""),
        ("budget: 4h", "budget: ¦0", "repeats.budget", "0", ""),
        (", within: 5%", "", "repeats", "", ""),
        ("priority: 10", "priority: ¦101", "priority", "101", ""),
        ("priority: 10", "priority: ¦high", "priority", "high", ""),
        ("every: 20", "every: ¦0", "anchor.every", "0", ""),
        (", every: 20", "", "anchor", "", ""),
        ("virtio, streams: 1}", "¦virtoi, streams: 1}", "anchor.cell.nic_model", "virtoi", "virtio"),
        ("virtio, streams: 1}", "virtio, streams: ¦2}", "anchor.cell.streams", "2", ""),
        ("virtio, streams: 1}", "virtio, ¦seconds: 5, streams: 1}", "anchor.cell.seconds", "", ""),
        ("virtio, streams: 1}", "virtio, streams: ¦[1]}", "anchor.cell.streams", "[1]", ""),
        ("cell: {scenario: same-host", "cell: {scenario: ¦same-hots", "anchor.cell.scenario", "same-hots", "same-host"),
        ("cell: {scenario: same-host", "cell: {scenario: ¦host-to-vm", "anchor.cell.scenario", "host-to-vm", "host-to-host"),
        ("cell: {scenario: same-host, ", "¦cell: {", "anchor.cell", "", ""),
        (", streams: 1}", "}", "anchor.cell", "", ""),
        ("then: skip", "then: ¦skp", "quiet.then", "skp", "skip"),
        ("wait: 90 s", "wait: ¦-1", "quiet.wait", "-1", ""),
        ("back_off: 0", "back_off: ¦soon", "back_off", "soon", ""),
        ('"env:LABCTL_NOTIFY"', "¦'env:not a name'", "notify[0]", "", ""),
    ],
)  # fmt: skip
def test_one_mistake_is_told_with_its_place(old: str, new: str, key: str, value: str, near: str) -> None:
    """The bar in the new text marks the place that the message must name."""
    marked = edited(old, new)
    (problem,) = mistakes(marked.replace("¦", ""))
    assert (problem.key, problem.value, problem.nearest) == (key, value, near)
    assert problem.line > 1
    if "¦" in marked:
        before = marked[: marked.index("¦")]
        assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("window: 22:00-06:00\n", "window", "add `zone`"),
        ("until: 2026-12-31\n", "until", "add `zone`"),
        ("zone: UTC\n", "zone", "says nothing"),
        ("zone: UTC\nwindows: []\n", "windows", "empty"),
        ("zone: UTC\nwindow: 22:00-06:00\nwindows: [{time: 08:00-09:00}]\n", "windows", "line 4"),
        ("repeats: {min: 5}\n", "repeats", "`max` is missing"),
        ("anchor: {cell: {}, every: 3}\n", "anchor.cell", "no cell"),
    ],
)
def test_contradictions(text: str, key: str, words: str) -> None:
    problem = next(problem for problem in mistakes(SHORT + text) if words in problem.message)
    assert problem.key == key
    assert problem.line > 2


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ("[{time: 22:00-06:00}, {days: [wed], time: 05:00-07:00}]", "both are open on wed 05:00"),
        ("[{days: [mon], time: 08:00-12:00}, {days: [mon, tue], time: 11:59-13:00}]", "on mon 11:59"),
        ("[{days: [mon], time: 02:00-03:00}, {days: [sun], time: 22:00-02:01}]", "on mon 02:00"),
        ("[{days: [sun], time: 22:00-06:00}, {days: [mon], time: 00:00-01:00}]", "on mon 00:00"),
        ("[{days: [tue], time: 08:00-12:00}, {days: [tue], time: 08:00-12:00}]", "on tue 08:00"),
    ],
)
def test_windows_that_overlap_are_refused_also_over_the_end_of_the_week(windows: str, words: str) -> None:
    (problem,) = mistakes(f"{SHORT}zone: UTC\nwindows: {windows}\n")
    assert problem.key == "windows[1]"
    assert words in problem.message
    assert "line 4" in problem.message


@pytest.mark.parametrize(
    "windows",
    [
        "[{days: [mon], time: 08:00-12:00}, {days: [mon], time: 12:00-13:00}]",
        "[{days: [fri], time: 20:00-24:00}, {days: [sat, sun], time: 00:00-24:00}, {days: [mon], time: 00:00-06:00}]",
        "[{days: [sun], time: 22:00-06:00}, {days: [mon], time: 06:00-07:00}]",
        "[{time: 22:00-06:00}, {time: 06:00-22:00}]",
    ],
)
def test_windows_that_only_touch_are_right(windows: str) -> None:
    assert parse_campaign(f"{SHORT}zone: UTC\nwindows: {windows}\n").windows is not None


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Day)), st.integers(0, DAY - 1), st.integers(1, DAY - 1)), min_size=2, max_size=4
    )
)
def test_overlaps_are_those_of_the_minutes_of_the_week(parts: list[tuple[Day, int, int]]) -> None:
    entries, minutes = [], []
    for day, start, length in parts:
        end = (start + length) % DAY
        entries.append(f"{{days: [{day}], time: '{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}'}}")
        begin = list(Day).index(day) * DAY + start
        minutes.append({minute % (7 * DAY) for minute in range(begin, begin + length)})
    expected = {
        f"windows[{index}]" for index, mine in enumerate(minutes) if any(mine & earlier for earlier in minutes[:index])
    }
    text = f"{SHORT}zone: UTC\nwindows:\n" + "".join(f"  - {entry}\n" for entry in entries)
    found = {problem.key for problem in mistakes(text)} if expected else set()
    assert found == expected
    if not expected:
        parse_campaign(text)


@pytest.mark.parametrize(
    "url", ["https://hooks.example/hunter2", "mailtos://me:hunter2@example.org", "hunter2", "slack:hunter2"]
)
def test_an_address_of_news_written_out_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_campaign(f"{SHORT}notify: ['{url}']\n")
    assert "hunter2" not in str(caught.value)
    (problem,) = caught.value.problems
    assert problem.key == "notify[0]"
    assert "env:NAME" in problem.allowed
    assert ("environment variable" in problem.message) == ("://" in url)


def test_a_window_of_an_option_takes_the_place_of_the_campaigns_own() -> None:
    campaign = parse_campaign(FULL)
    assert with_window(campaign, None, None) is campaign
    changed = with_window(campaign, "22:00-06:00", "Asia/Kolkata").windows
    assert changed is not None
    assert (changed.zone, changed.times) == ("Asia/Kolkata", (NIGHT,))
    assert (changed.blackout, changed.until) == (
        frozenset({date(2026, 12, 24), date(2026, 12, 25)}),
        date(2026, 12, 31),
    )
    same_zone = with_window(campaign, "01:00-02:00", None).windows
    assert same_zone is not None
    assert same_zone.zone == "Europe/Dublin"
    elsewhere = with_window(campaign, None, "UTC").windows
    assert elsewhere is not None
    assert campaign.windows is not None
    assert (elsewhere.zone, elsewhere.times) == ("UTC", campaign.windows.times)
    assert with_window(parse_campaign(SHORT), "22:00-06:00", "UTC").windows == Windows(zone="UTC", times=(NIGHT,))


@pytest.mark.parametrize(
    ("window", "zone", "words"),
    [
        ("22:00-06:00", None, "needs a time zone"),
        (None, "UTC", "without a window"),
        ("late", "UTC", "22:00-06:00"),
        ("22:00-22:00", "UTC", "no length"),
        ("22:00-06:00", "Europe/Dubln", "Did you mean Europe/Dublin?"),
    ],
)
def test_what_is_no_window_of_an_option(window: str | None, zone: str | None, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_window(parse_campaign(SHORT), window, zone)
    assert words in str(caught.value)
