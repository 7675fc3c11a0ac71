from dataclasses import replace

import numpy as np
import pytest

from ich_mil.ledger import Code, LedgerEntry
from ich_mil.model.predictions import Run
from ich_mil.pages.strip import BOTTOM, LEFT, RIGHT, TICKS, TOP, WIDTH, height_of, make_strip
from tests.results import scan_of


@pytest.fixture
def scan():
    return scan_of(np.pad(np.ones((6, 4, 4), bool), ((12, 2), (0, 0), (0, 0))))


def test_heights_run_from_nothing_to_certainty():
    assert [height_of(p) for p in (0, 0.5, 1)] == [BOTTOM, (BOTTOM + TOP) / 2, TOP]


def test_columns_of_the_strip(scan):
    strip = make_strip(scan, [13, 14])
    assert strip.columns[0].x == LEFT
    np.testing.assert_allclose(np.diff([c.x for c in strip.columns]), (RIGHT - LEFT) / 20)
    assert strip.columns[-1].x + strip.columns[-1].width == pytest.approx(RIGHT)
    for column, one in zip(strip.columns, scan.slices, strict=True):
        assert (column.low, column.y, column.high) == tuple(
            BOTTOM - p * (BOTTOM - TOP) for p in (one.interval_95[0], one.probability, one.interval_95[1])
        )
        assert column.positive == (12 <= one.slice <= 17)
        assert column.mapped == (one.slice in (13, 14))
        assert column.labelled == (one.label == 1)
    assert strip.columns[12].text.replace("\N{NO-BREAK SPACE}", " ") == (
        "Slice 13: 94 %, 95 % interval 90 % to > 99 %"
    )
    assert "slices 13–18" in strip.text


def test_brackets_of_runs(scan):
    strip = make_strip(scan)
    (one,) = strip.brackets
    assert (one.left, one.name) == (strip.columns[12].x, "13–18")
    assert one.right == pytest.approx(strip.columns[18].x)
    assert "none" in make_strip(replace(scan, runs=())).text


def with_positions(scan, positions, *codes):
    slices = tuple(replace(one, position_mm=mm) for one, mm in zip(scan.slices, positions, strict=True))
    ledger = tuple(LedgerEntry(scan.scan, "", code, "") for code in codes)
    return replace(scan, slices=slices, ledger=ledger)


def test_a_gap_is_drawn_where_it_is(scan):
    positions = [5.0 * i + 25 * (i > 9) for i in range(20)]
    strip = make_strip(with_positions(scan, positions, Code.GAP))
    ((x, words),) = strip.gaps
    assert x == pytest.approx(strip.columns[10].x)
    assert words == "30.0 mm between slices 10 and 11"
    assert make_strip(with_positions(scan, positions, Code.TILTED)).gaps == []  # thick slices that meet
    assert make_strip(with_positions(scan, [None, *positions[1:]], Code.GAP)).gaps == []
    even = with_positions(scan, [5.0 * i for i in range(20)], Code.GAP)
    assert make_strip(even).gaps == []  # at an end
    spaced = replace(even.ledger[0], detail="19 steps of up to 5.00 mm between slices 2.5 mm thick: not seen")
    assert len(make_strip(replace(even, ledger=(spaced,))).gaps) == 19  # every other slice is missing
    thick = with_positions(scan, [10.0 * i + 20 * (i > 9) for i in range(20)], Code.GAP)
    lost = replace(thick.ledger[0], detail="30.00 mm between this slice and IM7, 10.00 mm is regular")
    assert len(make_strip(replace(thick, ledger=(lost,))).gaps) == 1
    averaged = LedgerEntry("s", "", Code.AVERAGED, "")
    assert make_strip(replace(even, ledger=(spaced, averaged))).gaps == []  # thicker than the files


def test_names_of_runs_never_overlap(scan):
    many = replace(scan, slices=tuple(replace(scan.slices[0], slice=i) for i in range(300)))
    runs = tuple(Run(i, i + 1, 0.3) for i in range(0, 299, 3))
    brackets = make_strip(replace(many, runs=runs)).brackets
    assert len(brackets) == len(runs)
    named = [one for one in brackets if one.name]
    assert 1 < len(named) < len(runs)
    middles = [(one.left + one.right) / 2 for one in named]
    assert min(np.diff(middles)) > 40
    assert middles[-1] < WIDTH


@pytest.mark.parametrize("n", [1, 2, 12, 13, 24, 36, 400, 3000])
def test_few_ticks_at_round_numbers(scan, n):
    slices = tuple(replace(scan.slices[0], slice=i) for i in range(n))
    ticks = make_strip(replace(scan, slices=slices, runs=())).ticks
    numbers = [number for _, number in ticks]
    assert numbers[0] == 1
    assert len(numbers) <= TICKS + 1
    assert len(set(numbers)) == len(numbers)
    assert len(set(np.diff(numbers[1:]))) <= 1
    assert numbers[-1] <= n
    assert ticks[0][0] == pytest.approx(LEFT + (RIGHT - LEFT) / n / 2)
