"""ZIP files: contents and names after unpacking, and what is refused before anything is written."""

import zipfile
from pathlib import Path

import pytest

from ich_mil.errors import DataError
from ich_mil.study.files import archive
from ich_mil.study.files.archive import unpacked

WRITTEN = (2024, 3, 12, 9, 30, 2)


def zip_of(path, files, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in files:
            file.writestr(zipfile.ZipInfo(name, WRITTEN), content, method)
    return path


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_of_a_zip_and_their_end(tmp_path):
    path = zip_of(tmp_path / "a.zip", [("DICOM/", b""), ("DICOM/IM1", b"one"), ("IM2", b"two")])
    with unpacked(path) as folder:
        assert files_below(folder) == {"DICOM/IM1": b"one", "IM2": b"two"}
        first = (folder / "IM2").stat().st_mtime_ns
    assert not folder.exists()
    with unpacked(path, {"IM2"}) as folder:
        assert files_below(folder) == {"IM2": b"two"}
        assert (folder / "IM2").stat().st_mtime_ns == first


def test_names_stay_in_the_folder_and_apart(tmp_path):
    names = ["../../evil", "/etc/passwd", "C:\\x\\y", "..", "twice", "twice"]
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = zip_of(tmp_path / "a.zip", [(name, str(n)) for n, name in enumerate(names)])
    with unpacked(path) as folder:
        found = {name: int(content) for name, content in files_below(folder).items()}
    assert found == {"evil": 0, "etc/passwd": 1, "x/y": 2, "file 3": 3, "twice": 4, "twice (5)": 5}
    assert list(tmp_path.iterdir()) == [path]


def test_other_paths_are_themselves(tmp_path):
    (tmp_path / "x.dcm").write_bytes(b"\0" * 128 + b"DICM")
    for path in (tmp_path, tmp_path / "x.dcm", Path("/absent")):
        with unpacked(path) as same:
            assert same == path


def encrypted(path):
    content = bytearray(zip_of(path, [("IM1", b"one")]).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # bit 0 of the flags in the directory
    path.write_bytes(content)


def other_content(path):
    path.write_bytes(zip_of(path, [("IM1", b"one")], zipfile.ZIP_STORED).read_bytes().replace(b"one", b"two"))


def unknown_method(path):
    content = bytearray(zip_of(path, [("IM1", b"one")]).read_bytes())
    for at in (content.index(b"PK\x03\x04") + 8, content.index(b"PK\x01\x02") + 10):
        content[at] = 9  # Deflate64
    path.write_bytes(content)


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("zeros", "w") as member:
        for _ in range((archive.HARMLESS_BYTES >> 20) + 1):
            member.write(b"\0" * (1 << 20))


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (encrypted, "password"),
        (lambda path: zip_of(path, []), "export it again"),
        (lambda path: path.write_bytes(zip_of(path, [("a", b"x" * 99)]).read_bytes()[:60]), "copy or export"),
        (other_content, "copy or export"),
        (unknown_method, "unpack it"),
        (bomb, "times as much"),
    ],
    ids=["encrypted", "empty", "truncated", "wrong checksum", "unknown method", "bomb"],
)
def test_refused(tmp_path, make, remedy):
    path = tmp_path / "a.zip"
    make(path)
    with pytest.raises(DataError, match=rf"a\.zip: .*{remedy}"), unpacked(path):
        pass


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 1), ("MOST_BYTES", 5)])
def test_limits_of_number_and_size(tmp_path, monkeypatch, limit, most):
    path = zip_of(tmp_path / "a.zip", [("IM1", b"one"), ("IM2", b"two")])
    monkeypatch.setattr(archive, limit, most + 1)
    with unpacked(path):
        pass
    monkeypatch.setattr(archive, limit, most)
    with pytest.raises(DataError, match=r"a\.zip: .* more than"), unpacked(path):
        pass
