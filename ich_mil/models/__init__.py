"""The attention CNN and its backbones."""
