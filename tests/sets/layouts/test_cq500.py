import pandas as pd
import pytest

from ich_mil.errors import DataError
from ich_mil.sets.layouts.cq500 import FINDINGS, Cq500Collection, read_cq500_findings, read_votes


def write_reads(path, scans):
    """A reads.csv; each scan is three strings of the letters i, p, v, s, e, a: what each reader saw."""
    letters = dict(zip("ipvsea", FINDINGS, strict=True))
    rows = []
    for name, readers in scans.items():
        row = {"name": name, "Category": "B1"}
        for number, seen in enumerate(readers, start=1):
            row |= {f"R{number}:{finding}": int(letter in seen) for letter, finding in letters.items()}
        rows.append(row)
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_majority_and_agreement_by_hand(tmp_path):
    path = write_reads(
        tmp_path / "reads.csv",
        {
            "CQ500-CT-7": ["ip", "ips", "i"],
            "CQ500-CT-2": ["", "", ""],
            "CQ500-CT-3": ["is", "", ""],
            "CQ500-CT-4": ["iv", "ie", ""],
        },
    )
    findings = read_cq500_findings(path)
    assert findings.index.name == "scan"
    assert list(findings.index) == ["CQ500-CT-7", "CQ500-CT-2", "CQ500-CT-3", "CQ500-CT-4"]
    assert list(findings.columns) == [*FINDINGS, "readers_agree"]
    assert {str(kind) for kind in findings.dtypes} == {"bool"}
    seen = {scan: [name for name in FINDINGS if row[name]] for scan, row in findings.iterrows()}
    # the last one bleeds by majority, yet no two readers name the same kind
    assert seen == {"CQ500-CT-7": ["ICH", "IPH"], "CQ500-CT-2": [], "CQ500-CT-3": [], "CQ500-CT-4": ["ICH"]}
    assert findings.readers_agree.tolist() == [True, True, False, False]
    assert read_votes(path, ["ICH", "IPH"]).loc["CQ500-CT-7"].tolist() == [3, 2]


def test_reads_that_cannot_be_used(tmp_path):
    path = write_reads(tmp_path / "reads.csv", {"a": ["i", "i", ""], "b": ["", "", ""]})
    good = path.read_text()
    path.write_text(good.replace("R3:SAH", "R3:other"))
    with pytest.raises(DataError, match=r"reads\.csv: column R3:SAH is missing"):
        read_cq500_findings(path)
    assert len(read_votes(path, ["ICH"])) == 2  # a column nobody asks for may be absent
    path.write_text(good.replace("b,B1,0", "a,B1,0"))
    with pytest.raises(DataError, match="scans listed twice: a"):
        read_cq500_findings(path)
    path.write_text(good.replace("b,B1,0", "b,B1,?"))
    with pytest.raises(DataError, match=r"line 3: R1:ICH must be 0 or 1, got '\?'"):
        read_cq500_findings(path)


@pytest.mark.realdata
def test_the_public_reads_of_cq500(shared_data, tmp_path):
    """Counts by majority: Chilamkurthy et al. 2018, table 2; the 78 disagreements are our own count."""
    source = shared_data / "features" / "cq500_reads.csv"
    findings = read_cq500_findings(source)
    assert len(findings) == 491
    counts = {"ICH": 205, "IPH": 134, "IVH": 28, "SDH": 53, "EDH": 13, "SAH": 60}
    assert findings[list(FINDINGS)].sum().to_dict() == counts
    assert (~findings.readers_agree).sum() == 78
    kinds = findings[list(FINDINGS[1:])].any(axis=1)
    assert not (kinds & ~findings.ICH).any()
    (tmp_path / "reads.csv").write_bytes(source.read_bytes())
    assert Cq500Collection(tmp_path).labels == findings.ICH.astype(int).to_dict()
