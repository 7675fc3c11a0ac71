"""Self-supervised warm-up on slices: classify synthetic bleeds against unchanged slices and controls.

The task generates its own labels, as CutPaste does (Li et al. 2021, arXiv:2104.04015). Its inputs are slices
of negative scans: unchanged, with a synthetic bleed, or with a control of the same shapes. One step has as
many bleeds as an epoch of scans. The attention is not trained.

    loss = mean BCE(slice logit, 1 if blood was drawn in, else 0);  half of the slices of a step have blood

Shapes: n slices, W windows, S pixels.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ich_mil.data.bags import Pictures
from ich_mil.encoders.attention_cnn import AttentionCnn
from ich_mil.errors import DataError
from ich_mil.kernels.pictures import vary
from ich_mil.progress import say
from ich_mil.training.augment import VariedScans, draw_variation

SLICES = 48
"""Slices per step: half with blood, a quarter with controls, a quarter unchanged."""
DRAWS = 8
"""Number of bleeds, and of controls, drawn into each negative scan; augmentation varies them in each step."""
SCANS = 100
"""Largest number of negative scans used: more scans need memory and add no new appearance of blood."""
KEPT = 8 << 30
"""Limit in bytes for the pictures, above which no scan is added: about 20 scans at 512 pixels, 80 at 256."""
LEARNING_RATE = 1e-3
"""Learning rate of Adam."""


def drawn_slices(
    scans: VariedScans, pictures: Pictures, rng: np.random.Generator
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Pictures (1, W, S, S) for the warm-up, on the CPU: with blood, with controls, and unchanged.

    `DataError` if no negative scan has room for a bleed.
    """
    negative = np.flatnonzero(np.array(scans.scans.labels) == 0)
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    plain: list[Tensor] = []
    for index in rng.permutation(negative)[:SCANS]:
        if sum(one.nbytes for part in (*parts.values(), plain) for one in part) >= KEPT:
            break
        for blood, part in parts.items():
            for _ in range(DRAWS):
                if drawn := scans.drawn(int(index), rng, blood=blood):
                    part += pictures.of(torch.from_numpy(drawn.hu[drawn.shown])).split(1)
        plain += pictures.of(scans.scans[int(index)].hu[0]).split(1)
    if not all(parts.values()):
        raise DataError(
            "no negative training scan has room for a synthetic bleed, which the warm-up draws; set "
            "training.warmup_steps to 0"
        )
    return parts[True], parts[False], plain


def warm_up(
    model: AttentionCnn, scans: VariedScans, pictures: Pictures, *, steps: int, seed: int
) -> list[float]:
    """Train `model` on slices, in place, on its device. Returns the loss of each step.

    Args:
        model: the CNN.
        scans: the training scans.
        pictures: preprocessing from HU to the pictures of `model`.
        steps: number of steps, of `SLICES` slices each.
        seed: seed of insertions, order, augmentation and dropout.
    """
    rng = np.random.default_rng([seed, steps])
    torch.manual_seed(seed)
    device = next(model.parameters()).device
    kinds = drawn_slices(scans, pictures, rng)
    shares = (SLICES // 2, SLICES // 4, SLICES // 4)
    target = torch.cat([torch.full((n,), float(kind == 0)) for kind, n in enumerate(shares)]).to(device)
    each = torch.arange(SLICES + 1)
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    model.train()
    losses: list[Tensor] = []
    for step in range(1, steps + 1):
        slices = [
            kind[int(place)]
            for kind, n in zip(kinds, shares, strict=True)
            for place in rng.integers(len(kind), size=n)
        ]
        variations = [draw_variation(rng) for _ in slices]
        fed = torch.cat(slices).to(device, non_blocking=True)
        varied = pictures.beside(vary(fed.split(1), variations, pictures.windows), each)
        logit = model.classifier(model.encode(varied)).squeeze(-1)  # (n,)
        loss = binary_cross_entropy_with_logits(logit, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
        if step % 100 == 0:
            say(f"warm-up step {step:4d}  loss {float(torch.stack(losses[-100:]).mean()):.4g}")
    return [float(loss) for loss in losses]
