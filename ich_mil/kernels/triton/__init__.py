"""Triton kernels of the operations in `ich_mil.kernels`, imported only where a GPU runs them."""
