"""Training of the attention CNN with Lightning: steps, logging, checkpoints."""
