"""Inference of the multimodal model: exact likelihood, prior with learned scales, samplers."""
