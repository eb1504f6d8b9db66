"""Pure functions over results: summaries, comparisons, the timeline of a migration, plausibility."""
