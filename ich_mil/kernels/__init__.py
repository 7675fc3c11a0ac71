"""Operations on packed bags and kernel matrices: reference implementations in PyTorch, and Triton kernels."""
