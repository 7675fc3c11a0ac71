"""Tables of a protocol's report."""

import numpy as np
import pandas as pd

from research.reproduce.page import markdown_table


def test_tables_show_small_p_values():
    frame = pd.DataFrame(
        {
            "model": ["a|b", "c"],
            "p": [4.9e-4, 5.1e-4],
            "delong_p": [0.0, np.nan],
            "step": [0.0, 1.0],
            "note": ["", "x"],
        }
    )
    assert markdown_table(frame).splitlines() == [
        "| model | p | delong_p | step | note |",
        "| --- | --- | --- | --- | --- |",
        "| a\\|b | < 0.001 | < 0.001 | 0.000 |  |",
        "| c | 0.001 | – | 1.000 | x |",
    ]
