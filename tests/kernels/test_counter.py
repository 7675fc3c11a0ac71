"""Counter-based normal numbers against Philox in Python's integers, and against their distribution."""

import hashlib
import math

import pytest
import torch

from ich_mil.kernels.counter import normals, scan_key

WORD = 2**64


def philox(counter, key):
    """Philox4x64-10 as Salmon et al. 2011 define it: four words from four, with a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high_a, low_a = divmod(0xD2E7470EE14C6C93 * c0, WORD)
        high_b, low_b = divmod(0xCA5A826395121157 * c2, WORD)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return c0, c1, c2, c3


def by_hand(seed, key, n, samples):
    """Box-Muller on the words of one counter after the other."""
    z = [[math.nan] * n for _ in range(samples)]
    for sample in range(0, samples, 4):
        for column in range(n):
            words = philox((sample // 4 * n + column, 0, 0, 0), (seed % WORD, key % WORD))
            u = [((w >> 11) + 0.5) / 2**53 for w in words]
            for j, (one, two) in enumerate([(u[0], u[1]), (u[0], u[1]), (u[2], u[3]), (u[2], u[3])]):
                turn = math.sin if j % 2 else math.cos
                if sample + j < samples:
                    z[sample + j][column] = math.sqrt(-2 * math.log(one)) * turn(2 * math.pi * two)
    return torch.tensor(z, dtype=torch.float64)


# kat_vectors of Random123 1.09, the lines "philox4x64 10": counter, key, words.
PUBLISHED = [
    ([0] * 4, [0] * 2, [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


def test_philox_by_hand_gives_the_published_words():
    for counter, key, words in PUBLISHED:
        assert list(philox(counter, key)) == words


CASES = [(0, 0, 1, 1), (0, 0, 1, 5), (3, -7, 37, 9), (-1, 2**62 + 5, 5, 30), (2**70 + 9, -(2**63), 2, 130)]


@pytest.mark.parametrize(("seed", "key", "n", "samples"), CASES)
def test_normals_equal_box_muller_on_philox_by_hand(seed, key, n, samples, device):
    got = normals(seed, key, n, samples=samples, device=device)
    assert got.device.type == device.type
    # sin and cos are good to an ulp of 1, and a normal number of up to 6 has a radius of up to 6
    expected = by_hand(seed, key, n, samples)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-14, atol=6 * 2.0**-52)


@pytest.mark.parametrize("n", [1, 3, 35])
def test_more_samples_keep_the_first_to_the_bit(n):
    many = normals(1, 2, n, samples=1001)
    for samples in (1, 2, 3, 4, 6, 37, 1000):
        assert torch.equal(normals(1, 2, n, samples=samples), many[:samples])


def test_the_scan_key_is_64_bits_of_sha256():
    assert scan_key("CQ500-CT-0") % WORD == int(hashlib.sha256(b"CQ500-CT-0").hexdigest()[:16], 16)
    torch.tensor([scan_key(str(i)) for i in range(100)])  # fits int64
