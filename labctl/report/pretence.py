"""What of a campaign only pretended: the whole lab, or its hypervisor. Every report says so before anything else."""

from __future__ import annotations

from labctl.model.result import CampaignRecord

SIMULATED = "Simulated: no machine was touched, and no figure here is a measurement."
"""Of a simulated lab."""

SIMULATED_HYPERVISOR = (
    "Simulated hypervisor: real programs moved real data, but in stand-ins for VMs, "
    "so no figure here tells of real ones."
)
"""Of a lab whose hosts say of themselves that a simulator answers for them (their fact `simulated`)."""


def pretence_of(record: CampaignRecord) -> str:
    """What only pretended, in a sentence; empty when everything was real."""
    if record.lab_document.get("simulated") is not None:
        return SIMULATED
    results = (result for run in record.runs for result in (run.result, *run.earlier) if result is not None)
    facts = (one for result in results for one in result.facts if one.subject.startswith("host:"))
    return SIMULATED_HYPERVISOR if any(one.facts.get("simulated") is True for one in facts) else ""
