"""Sparse Gaussian-process heads for multiple-instance learning on frozen slice features."""

import warnings

with warnings.catch_warnings():
    # GPyTorch 1.15 calls torch.jit.script on import, which recent versions of torch deprecate.
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*", category=DeprecationWarning)
    import gpytorch  # noqa: F401
