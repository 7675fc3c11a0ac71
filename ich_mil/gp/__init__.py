"""Sparse Gaussian-process heads for multiple-instance learning on frozen slice features."""

import warnings

# GPyTorch 1.15 calls torch.jit.script on import, which recent versions of torch deprecate. It is not imported
# here, so that settings are read and checked without torch.
for _kind in (FutureWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*", category=_kind)
