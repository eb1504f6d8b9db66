"""Adaptive repeats: another run for a cell that is not known well enough yet.

The worker considers a cell when it has accepted a result of it; whoever is about to end the campaign considers all of them
once more, should a worker have died in between. Considering a cell twice adds nothing twice: a run has a replicate, and of
that there is one.
"""

from __future__ import annotations

from labctl.analysis.adaptive import wanted
from labctl.analysis.figures import throughput_of
from labctl.store import Store


def consider(store: Store, campaign_id: int, cell_id: str) -> int:
    """Add the next run of a cell if it needs one: all its runs are done, there are fewer than the most that was asked for,
    the interval of its mean is too wide, and the budget allows it. Returns how many runs were added, 0 or 1."""
    adaptive = store.head(campaign_id).campaign.adaptive
    if adaptive is None:
        return 0
    runs, left = store.cell_replicates(campaign_id, cell_id)
    if left or runs >= adaptive.maximum:
        return 0
    results = store.results_of_cell(campaign_id, cell_id)
    if len(results) < runs:
        # Some of its runs were ended without being run: somebody stopped it.
        return 0
    figures = [figure for result in results if (figure := throughput_of(result)) is not None]
    if not wanted(figures, adaptive, runs):
        return 0
    return store.add_runs(campaign_id, cell_id, [runs + 1], budget=adaptive.budget)


def consider_all(store: Store, campaign_id: int, seen: dict[str, int]) -> int:
    """Consider every cell of a campaign that has a figure. Returns how many runs were added.

    `seen` holds the cells that needed none, with how many runs they had then; it is for the caller to keep, so that each
    cell is looked at only once for each number of its runs.
    """
    if store.head(campaign_id).campaign.adaptive is None:
        return 0
    added = 0
    for cell_id, figures in store.cells_with_result(campaign_id).items():
        if seen.get(cell_id) == figures:
            continue
        more = consider(store, campaign_id, cell_id)
        added += more
        if not more:
            seen[cell_id] = figures
    return added
