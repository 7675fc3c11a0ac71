"""Leave-one-out products over bags, the coupling between the slices of a scan in VGPMIL.

For instance n of bag b: exp(Σ_{j∈b, j≠n} log(1 - π_j)), the probability under q(y) that no *other* instance of
its bag is positive (López-Pérez et al. / Castro-Macías et al. 2024, Eq. 25 written with 1 - E[max]).

Shapes: B bags, N instances, R replicates in leading dimensions.
"""

import torch
from torch import Tensor


def log_none_positive(log_not: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """ℓ_b = Σ_{j∈b} log(1 - π_j).

    Args:
        log_not: (..., N) log(1 - π), at most 0.
        bags: (N,) bag of each instance.
        n_bags: B.

    Returns:
        (..., B).
    """
    return log_not.new_zeros(*log_not.shape[:-1], n_bags).index_add(-1, bags, log_not)


def leave_one_out(log_not: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    """Π_{j∈b, j≠n} (1 - π_j) for every instance n, in O(N).

    `log_not` must come from the logits (`logsigmoid(-a)`), not from 1 - π: then it is finite and exact for π
    as near to 1 as float64 can tell, and the subtraction ℓ_b - log(1 - π_n) loses nothing that matters: its
    absolute error is at most a few ulp of ℓ_b, and the exponential of a large |ℓ_b| without n is 0 anyway unless
    n itself is the large term.

    Args:
        log_not: (..., N) log(1 - π).
        bags: (N,).
        n_bags: B.

    Returns:
        (..., N) in [0, 1].
    """
    total = log_none_positive(log_not, bags, n_bags)[..., bags]  # (..., N)
    return torch.exp((total - log_not).clamp(max=0.0))
