"""Report English: markup of archives, the reach of negations and hedges, and the vocabulary."""
