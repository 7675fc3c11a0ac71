"""Observation models of the heads: ψ-VGPMIL, LM-VGPMIL and MIL-GP-Probit."""
