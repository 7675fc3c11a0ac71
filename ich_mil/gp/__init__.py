"""The Gaussian-process head: multiple-instance learning on frozen slice features, with uncertainty."""

import warnings

with warnings.catch_warnings():
    # GPyTorch 1.15 scripts functions on import, which recent versions of torch announce as deprecated
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*", category=DeprecationWarning)
    import gpytorch  # noqa: F401
