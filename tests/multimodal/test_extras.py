"""Requests, reports and covariates: what is read, and what states the result and is refused."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ich_mil.config import read_config
from ich_mil.errors import ConfigError, DataError
from ich_mil.heads import extras as module
from ich_mil.heads.extras import ExtraSources, read_covariates, states_result
from ich_mil.multimodal.embedding import SentenceEmbedding
from ich_mil.network.training.set_settings import SetSettings
from ich_mil.radiology_text.labels import read_sentences
from ich_mil.radiology_text.read import Report

REQUESTS = {f"s{i}": text for i, text in enumerate(["Fall, on warfarin.", "Rule out bleed.", "GCS 9."] * 5)}


def table(path, texts):
    pd.DataFrame({"scan": list(texts), "text": list(texts.values())}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("fall, on warfarin", False),
        ("head injury, GCS 14, rule out ICH", False),
        ("?SDH", False),
        ("evaluate for hemorrhage", False),
        ("concern for subarachnoid hemorrhage", False),
        ("s/p evacuation of SDH", False),
        ("No acute intracranial hemorrhage.", True),
        ("Small right subdural hematoma.", True),
    ],
)
def test_what_states_the_result(text, stated):
    ((statement,),) = read_sentences([Report("r", "s", text)])
    assert states_result(statement) == stated


def test_requests_that_state_the_result_are_left_out(tmp_path, capsys):
    texts = REQUESTS | {"s3": "Fall. Small right subdural hematoma."}
    path = table(tmp_path / "requests.csv", texts)
    extras = ExtraSources(requests=path).read(texts)
    assert set(extras.sentences) == set(texts) - {"s3"}
    assert extras.sentences["s0"] == ("Fall, on warfarin.",)
    assert "requests.csv: texts that state the result, which are not used: 1, s3" in capsys.readouterr().out
    assert "s3" in ExtraSources(reports=path).read(texts).sentences  # asked for by name


def test_a_table_of_reports_is_refused_as_requests(tmp_path):
    texts = {f"s{i}": ("No hemorrhage.", "Left subdural hematoma.")[i % 2] for i in range(10)}
    path = table(tmp_path / "reports.csv", texts)
    with pytest.raises(DataError, match=r"reports\.csv: 10 of 10 texts state .* reports") as caught:
        ExtraSources(requests=path).read(texts)
    assert "subdural" not in str(caught.value)  # a text may name the patient
    assert len(ExtraSources(reports=path).read(texts).sentences) == 10
    with pytest.raises(ConfigError, match="not both"):
        ExtraSources(requests=path, reports=path)


def test_covariates_are_numbers_ages_and_sexes(tmp_path, capsys):
    path = tmp_path / "c.csv"
    path.write_text("scan,age,sex,gcs\na,063Y,F,14\nb,006M,m,\nc,70,,3\n")
    read = read_covariates(path)
    np.testing.assert_allclose(read["age"], [63, 0.5, 70])
    np.testing.assert_array_equal(read["sex"], [1, 0, np.nan])
    np.testing.assert_array_equal(read["gcs"], [14, np.nan, 3])
    assert set(ExtraSources(covariates=path).read(["b", "x"]).covariates) == {"b"}
    assert "of 2 scans 1 have an entry that is used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scan\na\n", "no column besides scan"),
        ("scan,age\na,old\n", "'a': age must be a number"),
        ("scan,subdural_hematoma\na,1\n", "names hemorrhage"),
        ("scan,age\na,1\na,2\n", "'?a'?"),
    ],
)
def test_covariates_that_cannot_be_used(tmp_path, text, told):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(DataError, match=rf"c\.csv: .*{told}"):
        read_covariates(tmp_path / "c.csv")


def test_extras_that_fit_no_scan(tmp_path):
    path = table(tmp_path / "requests.csv", REQUESTS)
    with pytest.raises(DataError, match=r"requests\.csv: holds nothing of the scans"):
        ExtraSources(requests=path).read(["other"])
    (tmp_path / "c.csv").write_text("scan,age\na,1\nb,2\n")
    both = ExtraSources(requests=path, covariates=tmp_path / "c.csv")
    with pytest.raises(DataError, match=r"requests\.csv: holds nothing of the scans"):
        both.read(["a", "b"])
    assert both.read(["a"]).covariates == {"a": {"age": 1.0}}  # one new scan may have no text
    with pytest.raises(ConfigError, match="name a table for feature files"):
        SetSettings("features", "f.csv", covariates="header").extras.read(["a"])


def test_age_and_sex_of_dicom_headers(monkeypatch):
    texts = {"a": {"PatientAge": "063Y", "PatientSex": "F"}, "b": {"PatientAge": "", "PatientSex": "O"}}
    monkeypatch.setattr(module, "prepared_study", lambda _, scan: scan)
    monkeypatch.setattr(module, "study_texts", texts.get)
    sources = SetSettings("folder", "d", covariates="header").extras
    found = sources.read(["a", "b"], SimpleNamespace()).covariates
    assert found["a"] == {"age": 63.0, "sex": 1.0}
    assert np.isnan([*found["b"].values()]).all()


def test_embedding_of_sentences():
    sentences = [*["fall on warfarin"] * 3, *["headache for a year"] * 4, "John Doe fell"]
    found = SentenceEmbedding.fit(sentences, features=2, seed=0)
    assert "doe" not in found.words
    assert "on warfarin" in found.words
    x = found(sentences)
    assert x.shape == (8, 2)
    np.testing.assert_allclose(x[0], x[1])
    np.testing.assert_allclose(found(["unknown words"]), 0)
    np.testing.assert_allclose(np.linalg.norm(x[:7], axis=1), 1, rtol=1e-6)  # two axes hold both kinds
    assert found([]).shape == (0, 2)
    with pytest.raises(DataError, match="no two words"):
        SentenceEmbedding.fit(["a b", "c d"], features=2, seed=0)


BASE = ["--out", "x", "--train.layout", "features", "--train.root", "f.csv"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--train.requests", "r.csv"], "inputs of head.family multimodal"),
        (["--head.family", "multimodal", "--head.n_inducing", "9"], "n_inducing is a setting of Gaussian"),
        (["--head.family", "multimodal", "--multimodal.gradients", "0"], "multimodal.gradients must be"),
        (["--train.requests", "r.csv", "--train.reports", "r.csv"], "name one of them"),
    ],
)
def test_settings_that_do_not_fit(words, told):
    with pytest.raises(ConfigError, match=told):
        read_config([*BASE, *words])
