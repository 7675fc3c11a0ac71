"""Benchmark sets: MUSK from npz, bags of digits that share no image, PCA of training images, IDX files."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from ich_mil.errors import DataError
from research.reproduce.mil import digit_bags, project, read_mnist, read_musk

X = np.arange(10, dtype=np.float32).reshape(5, 2)
BAG = np.array([7, 3, 7, 3, 9])


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("label", [[1, 0, 1], [0, 1, 0, 1, 1]], ids=["of the bag", "of the instance"])
def test_bags_are_packed_by_their_number(tmp_path, label):
    found = read_musk(save(tmp_path / "set.npz", X=X, bag=BAG, label=np.array(label)))
    assert found.scans == found.patients == ["set-3", "set-7", "set-9"]
    assert found.offsets.tolist() == [0, 2, 4, 5]
    assert found.labels.tolist() == [1, 0, 1]
    assert found.x.tolist() == [[2, 3], [6, 7], [0, 1], [4, 5], [8, 9]]
    assert found.slice_names == [f"set-row-{row}" for row in (1, 3, 0, 2, 4)]
    assert found.slice_labels.tolist() == [-1] * 5
    assert bool(found.cnn_scan.isnan().all())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X, "bag": BAG}, "key label is missing"),
        ({"X": X, "bag": BAG, "label": np.array([0, 1, 1, 1, 1])}, "bag 7 is labelled both 0 and 1"),
        ({"X": X, "bag": BAG[:4], "label": np.array([0, 1, 1])}, r"got \(5, 2\) and \(4,\)"),
        ({"X": X * np.nan, "bag": BAG, "label": np.array([0, 1, 1])}, "NaN or infinite"),
    ],
)
def test_an_npz_that_cannot_be_used(tmp_path, arrays, message):
    with pytest.raises(DataError, match=rf"set\.npz: .*{message}"):
        read_musk(save(tmp_path / "set.npz", **arrays))


def test_something_that_is_no_npz(tmp_path):
    (tmp_path / "text.npz").write_text("nonsense")
    np.save(tmp_path / "one.npy", X)
    for name in ("text.npz", "one.npy", "none.npz"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read as an npz of bags"):
            read_musk(tmp_path / name)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "bags", "positive", "instances"), [("musk1", 92, 47, 476), ("musk2", 102, 39, 6598)]
)
def test_musk_has_the_size_of_table_1(shared_data, name, bags, positive, instances):
    found = read_musk(shared_data / "mil" / f"{name}.npz")
    assert (found.n_scans, int(found.labels.sum()), len(found.x)) == (bags, positive, instances)
    assert found.x.shape[1] == 166
    assert len(set(found.patients)) == bags


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


def rows_of(features):
    return [int(name.removeprefix("image-")) for name in features.slice_names]


def test_digit_bags_are_those_of_the_paper(digits):
    images, shown = digits
    found = digit_bags(images, shown, seed=0)
    rows = rows_of(found)
    assert len(rows) == len(set(rows))  # no image twice
    np.testing.assert_array_equal(found.x.numpy(), images[rows])
    positive = np.isin(shown[rows], (2, 9)).reshape(-1, 10).sum(axis=1)
    np.testing.assert_array_equal(found.slice_labels, np.isin(shown[rows], (2, 9)))
    np.testing.assert_array_equal(found.labels, positive > 0)
    assert found.offsets.tolist() == list(range(0, len(rows) + 1, 10))
    assert int(found.labels.sum()) * 2 == found.n_scans
    assert set(positive[positive > 0].tolist()) == {1, 2, 3, 4}
    # neither the order of the bags nor the place in a bag tells the label
    for part in (found.labels[: found.n_scans // 2], found.labels[::2]):
        assert 0.3 < float(part.float().mean()) < 0.7
    place = found.slice_labels.reshape(-1, 10).sum(dim=0)
    assert int(place.max()) < 3 * int(place.min())


def test_pca_is_fitted_to_the_training_images_alone(digits):
    bags = digit_bags(*digits, seed=0)
    train, test = bags.select(bags.scans[:100]), bags.select(bags.scans[100:])
    a, b = project(train, test, components=30)
    # an independent route: singular vectors of the centred training pixels; a component's sign is free
    x = train.x.double()
    basis = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:30]
    for own, part in ((a, train), (b, test)):
        expected = (part.x.double() - x.mean(0)) @ basis.T
        sign = torch.sign((own.x.double() * expected).sum(0))
        torch.testing.assert_close(
            own.x.double(), expected * sign, rtol=0, atol=1e-4
        )  # float32, pixels to 16
    assert a.labels.tolist() == train.labels.tolist()
    # what is projected besides changes nothing
    assert torch.equal(project(train, components=30)[0].x, a.x)
    with pytest.raises(DataError, match=r"65 components need .* there are 1000 and 64"):
        project(train, components=65)


def idx(path, array):
    path.write_bytes(
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def test_mnist_is_that_of_torchvision(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.arange(5 * 28 * 28).astype(np.uint8).reshape(5, 28, 28)
    for name, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        idx(raw / f"{name}-images-idx3-ubyte", images[rows])
        idx(raw / f"{name}-labels-idx1-ubyte", np.array([5, 0, 9, 2, 1], np.uint8)[rows])
    found, digits = read_mnist(tmp_path)
    np.testing.assert_array_equal(found, images.reshape(5, -1))
    assert digits.tolist() == [5, 0, 9, 2, 1]
    (raw / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"holds no MNIST .*download=True"):
        read_mnist(tmp_path)
