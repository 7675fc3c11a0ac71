"""Inference of the heads: coordinate ascent, Gibbs sampling, kernel learning, inducing points."""
