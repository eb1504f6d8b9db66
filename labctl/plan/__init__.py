"""From a campaign to runs: the matrix, what is not applicable and why, the order of work, the time it takes."""
