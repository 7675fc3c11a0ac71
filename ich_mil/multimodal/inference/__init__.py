"""Inference of the multimodal model: variational, Laplace, Gibbs."""
