"""Operations on packed bags: plain-PyTorch definitions, and later their fused neighbours."""
