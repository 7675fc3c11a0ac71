"""Key terms are another part: where it is not there, a stand-in that counts words takes its place."""

import importlib.util
import sys
from collections import Counter
from types import ModuleType

import pandas as pd
import pytest


class CountedWords:
    """Known words first, then the most frequent; as `KeywordExtractor` is used by the command."""

    def __init__(self, min_count=1):
        self.min_count = min_count

    def fit(self, texts, known=()):
        counts = Counter(word.strip(".,:").lower() for text in texts for word in text.split())
        others = [
            word for word, n in counts.most_common() if word and word not in known and n >= self.min_count
        ]
        self.keywords_ = [*known, *others[:3]]
        rows = [(word, 1.0, 0.0) for word in known] + [(word, 0.25, 0.75) for word in others]
        self._table = pd.DataFrame(rows, columns=["term", "probability", "fdr"])
        return self

    def table(self):
        return self._table


@pytest.fixture(scope="session", autouse=True)
def _keywords():
    name = "ich_mil.reports.keywords"
    if importlib.util.find_spec(name) is not None:
        yield
        return
    module = ModuleType(name)
    module.KeywordExtractor = CountedWords
    sys.modules[name] = module
    yield
    del sys.modules[name]
