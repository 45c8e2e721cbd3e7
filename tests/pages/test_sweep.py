"""Test the section of a page about a sweep."""

from __future__ import annotations

from dlapp.pages.page import Extras, page
from dlapp.pages.sweep import MAX_DRAWN, MAX_ROWS, sweep_section
from dlapp.sweep.results import SweepResults, TrialState, TrialView
from dlapp.sweep.spec import Goal
from tests.pages.samples import START_MS, application
from tests.pages.test_page import EVIL, Document


def results(count: int, total: int = 10_000) -> SweepResults:
    trials = tuple(
        TrialView(
            number=number,
            state=TrialState.FAILED if number % 7 == 6 else TrialState.DONE,
            parameters={"lr": f"{10 ** -(number % 5 + 1)}", "kind": "abc"[number % 3], "same": "1", EVIL: f"{number}"},
            metric=None if number % 5 == 4 else number / count,
            step=3,
            ran_s=12.5,
            why=EVIL,
            curve=((1.0, 0.1), (2.0, 0.3), (3.0, number / count)),
        )
        for number in range(count)
    )
    names = ("lr", "kind", "same", EVIL)
    return SweepResults(total=total, parameters=names, metric="accuracy", goal=Goal.MAX, trials=trials)


def test_the_section_has_counts_a_table_and_two_pictures() -> None:
    document = Document(sweep_section(results(40)))
    assert "10000: 9960 waiting, 35 done, 5 failed" in document.text
    assert "trial 38: 0.95" in document.text
    assert len(document.attributes_of("tr")) == 1 + MAX_ROWS
    assert [item["viewbox"] for item in document.attributes_of("svg")] == ["0 0 720 260"] * 2
    assert "parameters and accuracy of 32 trials" in document.text
    whole = page(application(), START_MS, Extras(sweep=results(40)))
    assert "Sweep" in Document(whole).text
    assert "Sweep" not in Document(page(application(), START_MS)).text
    assert "script" not in {tag for tag, _ in document.elements}


def test_lines_stay_in_the_picture_and_the_best_are_in_colour() -> None:
    document = Document(sweep_section(results(40)))
    lines = document.attributes_of("polyline")
    assert len(lines) == 64
    assert sum(line.get("class") == "curve" for line in lines) == 10
    for line in lines:
        for point in (line["points"] or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 720
            assert 0 <= y <= 260


def test_metrics_whose_difference_no_float_holds_are_drawn_in_the_picture() -> None:
    most = 1.7e308
    trials = tuple(
        TrialView(
            number=number,
            state=TrialState.DONE,
            parameters={"lr": text},
            metric=metric,
            step=2,
            curve=((1.0, -most), (2.0, metric)),
        )
        for number, (text, metric) in enumerate((("-1.6e308", -most), ("0", 0.0), ("1.6e308", most)))
    )
    found = SweepResults(total=3, parameters=("lr",), metric="loss", goal=Goal.MIN, trials=trials)
    document = Document(sweep_section(found))
    lines = [line["points"] or "" for line in document.attributes_of("polyline")]
    assert len(lines) == 6
    places = {tuple(map(float, point.split(","))) for line in lines for point in line.split()}
    assert all(0 <= x <= 720 and 0 <= y <= 260 for x, y in places)
    assert {y for _, y in places} == {30.0, 134.0, 238.0}


def test_a_parameter_that_is_always_the_same_has_no_axis() -> None:
    document = Document(sweep_section(results(40)))
    of_parameters = document.text.partition("Learning curves")[0].rpartition("Parameters")[2]
    assert "same" not in of_parameters
    assert "kind" in of_parameters


def test_ten_thousand_trials_are_drawn_as_some_hundreds() -> None:
    text = sweep_section(results(10_000))
    assert Document(text).attributes_of("polyline").__len__() == 2 * MAX_DRAWN
    assert len(text) < 300_000


def test_a_sweep_without_metric_or_without_trials_has_no_pictures() -> None:
    assert sweep_section(SweepResults(total=3)) == ""
    bare = SweepResults(total=3, parameters=("lr",), trials=(TrialView(number=0, state=TrialState.RUNNING),))
    document = Document(sweep_section(bare))
    assert document.attributes_of("svg") == []
    assert len(document.attributes_of("tr")) == 2
    one = Document(sweep_section(results(1)))
    assert len(one.attributes_of("svg")) == 1  # one trial has a curve, and nothing to be compared with
