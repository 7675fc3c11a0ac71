"""Operations on packed bags and kernel matrices: plain-PyTorch definitions, and fused ones for a GPU."""
