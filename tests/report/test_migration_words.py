from __future__ import annotations

from dataclasses import replace

from labctl.report import units
from labctl.report.data import report_of
from labctl.report.migration_words import words_of
from tests.report.records import matrix_record


def test_what_a_migration_waited_for_its_turn_is_no_part_of_what_it_took() -> None:
    """V5."""
    effect = report_of(matrix_record()).migrations[0].effect
    alone = words_of(effect).hypervisor_total
    queued = words_of(replace(effect, migration=replace(effect.migration, queued_ms=12_000))).hypervisor_total
    assert queued == f"{alone} (after {units.seconds(12)} in the queue)"
    assert words_of(replace(effect, migration=replace(effect.migration, queued_ms=0))).hypervisor_total == alone
