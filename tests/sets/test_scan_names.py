"""The folder that stands for a scan, and the scan that a name means."""

from ich_mil.sets.scan_names import Name, ScanNames, folder_names, own_folders, short_name

FOLDERS = [
    ("A", "site/001/s1"),
    ("A", "site/001/s2"),
    ("B", "site/002/s1"),
    ("C", "all"),
    ("D", "all"),
    ("E", ""),
]


def test_the_lowest_folder_that_holds_all_of_one_scan():
    assert own_folders(FOLDERS) == {"A": "site/001", "B": "site/002", "C": "", "D": "", "E": ""}
    months = [("A", "2024-01/CT_1"), ("B", "2024-01/CT_2"), ("C", "2024-02/CT_085_HEAD"), ("C", "")]
    assert own_folders(months) == {"A": "2024-01/CT_1", "B": "2024-01/CT_2", "C": "2024-02/CT_085_HEAD"}


def test_last_parts_that_other_scans_have_are_left_out():
    studies = [("A", "a/Study/CT"), ("A", "a/Study/Bone"), ("B", "b/Study/CT")]
    assert own_folders(studies) == {"A": "a", "B": "b"}
    assert own_folders([("A", "a/Study"), ("B", "b/Other")]) == {"A": "a/Study", "B": "b/Other"}
    assert own_folders([("A", "a/Study")]) == {"A": "a/Study"}


def test_no_folder_stands_for_a_scan_that_it_holds_in_part():
    folders = [("A", "x/a/1"), ("A", "y/1"), ("B", "x/b")]
    assert own_folders(folders) == {"A": "", "B": "x/b"}
    assert own_folders([("A", "S1"), ("A", "S2")]) == {"A": ""}


def test_short_names_of_uids_alone():
    names = ("1.2.840.113619.2.55.3", "CQ500-CT-7", "ID_ade653597d", "sub-01/anat/sub-01_ct", "1.2.3")
    assert [short_name(name) for name in names] == ["…9.2.55.3", *names[1:]]


def test_scans_by_id_and_by_folders_above():
    names = ScanNames(folder_names(FOLDERS))
    found = {name: names.find(name) for name in ("A", "site/001", "001", "001/", "s2", "all", "s1", "E", "x")}
    assert found["A"] == found["site/001"] == found["001"] == found["001/"] == found["s2"] == {"A"}
    assert (found["all"], found["s1"], found["E"], found["x"]) == ({"C", "D"}, {"A", "B"}, {"E"}, set())


def test_leading_zeros_of_names():
    numbers = {"A": "001", "B": "01", "C": "002", "D": "7", "E": "007", "F": "0"}
    names = ScanNames(Name(*item) for item in numbers.items())
    found = {name: names.find(name) for name in ("1", "2", "2.0", "01", "7", "07", "0", "00", "0x1")}
    assert found["1"] == {"A", "B"}
    assert found["2"] == found["2.0"] == {"C"}
    assert (found["01"], found["7"], found["07"]) == ({"B"}, {"D"}, {"D", "E"})
    assert (found["0"], found["00"], found["0x1"]) == ({"F"}, {"F"}, set())
