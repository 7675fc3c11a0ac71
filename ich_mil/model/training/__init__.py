"""Training of a model: one run, an ensemble, a grid of heads; the sets they learn from."""
