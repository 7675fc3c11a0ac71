"""Lightning around the models: steps, logging, checkpoints."""
