"""Learning the encoder through the sparse Gaussian process of ψ-VGPMIL, beside freezing it first."""
