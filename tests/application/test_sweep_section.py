"""Test the section ``[sweep]`` of a properties file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.config import Config, load_config
from dlapp.errors import FileRefused, SpecError
from dlapp.sweep.spec import (
    AshaSpec,
    Distribution,
    DistributionKind,
    Goal,
    GridParameter,
    Sampler,
    SweepCommit,
    SweepSpec,
    TrialTable,
)
from dlapp.sweep.text_forms import read_values
from dlapp.value import replace
from dlapp.values.spec import AppSpec, CheckpointSpec, Framework, RoleSpec
from tests.application.test_description import MINIMAL, ON_HDFS, read, refused
from tests.services.missing import missing

GRID = "[sweep]\ngrid.lr=0.1, 0.01\n"


def sweep_of(place: Path, config: Config, section: str, more: str = "") -> SweepSpec:
    sweep = read(place, f"{MINIMAL}{more}[sweep]\n{section}", config).spec.sweep
    assert sweep is not None
    return sweep


def test_a_grid_has_as_many_trials_as_combinations(place: Path, config: Config) -> None:
    text = 'grid.lr=0.1, 0.01\ngrid.layers="64,64", 128,\n    256\n'
    assert sweep_of(place, config, text) == SweepSpec(
        sampler=Sampler.GRID,
        trials=6,
        grid=(GridParameter("lr", ("0.1", "0.01")), GridParameter("layers", ("64,64", "128", "256"))),
    )
    assert sweep_of(place, config, f"{text}trials=4\n").trials == 4
    assert read(place, MINIMAL, config).spec.sweep is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("grid.x=[0.1, 0.2]", "has brackets around its items, as in YAML and JSON: write 0.1, 0.2 without brackets"),
        ("grid.x=(1, 2)", "has brackets around its items, as in YAML and JSON: write 1, 2 without brackets"),
        ("grid.x=[0.1]", "has brackets around its items, as in YAML and JSON: write 0.1 without brackets"),
        ("grid.x=[a,\n b]", "has brackets around its items, as in YAML and JSON: write a, b without brackets"),
        ('grid.x=["a", "b"]', 'has brackets around its items, as in YAML and JSON: write "a", "b" without brackets'),
        (
            "grid.x=[64,64], [128,128]",
            "has '[64,64]', whose comma separates two items; write an item with a comma in double quotes",
        ),
        (
            "random.x=choice([sgd, adam])",
            "has brackets around its items, as in YAML and JSON: write sgd, adam without brackets",
        ),
        ("random.x=choice((1, 2), 3)", "has '(1, 2)', whose comma separates two items; write an item with a comma in"),
    ],
)
def test_values_in_brackets_are_refused(place: Path, config: Config, line: str, problem: str) -> None:
    (error,) = refused(place, f"{MINIMAL}[sweep]\ntrials=1\n{line}\n", config)
    assert error.startswith(f"7: sweep.{line.partition('=')[0]}: {problem}")


def test_brackets_of_one_value_are_part_of_it(place: Path, config: Config) -> None:
    text = 'grid.a=[64], [128]\ngrid.b="[64, 64]", "(1, 2)"\ngrid.c="[1]"\ngrid.d=f(x), :(\n'
    assert [item.values for item in sweep_of(place, config, text).grid] == [
        ("[64]", "[128]"),
        ("[64, 64]", "(1, 2)"),
        ("[1]",),
        ("f(x)", ":("),
    ]


def test_all_keys_of_a_random_sweep_arrive(place: Path, config: Config) -> None:
    text = (
        "random.lr=loguniform(1e-5, 0.1)\nrandom.drop=uniform(0, 0.5)\nrandom.n=int(1, 8)\n"
        "random.opt=choice(sgd, adam)\n"
        "trials=200\nseed=7\nmetric=val/accuracy\ngoal=max\nasha=1, 3, 9: 3\nconcurrency=6\ntrials_per_container=2\n"
        "trial_time=1h30m\nretries=2\nmax_failures=10\ncommit=trial\n"
    )
    kinds = DistributionKind
    assert sweep_of(place, config, text, "[resources]\ncontainers=3\n") == SweepSpec(
        sampler=Sampler.RANDOM,
        trials=200,
        random=(
            Distribution(name="lr", kind=kinds.LOGUNIFORM, low=1e-5, high=0.1),
            Distribution(name="drop", kind=kinds.UNIFORM, low=0.0, high=0.5),
            Distribution(name="n", kind=kinds.INT, low=1, high=8),
            Distribution(name="opt", kind=kinds.CHOICE, values=("sgd", "adam")),
        ),
        seed=7,
        metric="val/accuracy",
        goal=Goal.MAX,
        asha=AshaSpec((1, 3, 9), 3.0),
        concurrency=6,
        trials_per_container=2,
        trial_time_s=5400.0,
        retries=2,
        max_failures=10,
        commit=SweepCommit.TRIAL,
    )


def test_a_list_is_a_file_beside_the_properties_file(place: Path, config: Config) -> None:
    (place / "trials.csv").write_text("lr,batch\n0.1,32\n0.01,64\n")
    sweep = sweep_of(place, config, "list=trials.csv\nmetric=loss\ngoal=min\n")
    assert sweep.table == TrialTable(("lr", "batch"), (("0.1", "32"), ("0.01", "64")))
    assert (sweep.sampler, sweep.trials) == (Sampler.LIST, 2)


OPTUNA = "sampler=optuna:tpe\npruner=median\nrandom.lr=uniform(0, 1)\ntrials=9\nmetric=a\ngoal=max\n"


def test_optuna_has_the_names_of_its_sampler_and_pruner(place: Path, config: Config) -> None:
    pytest.importorskip("optuna")
    sweep = sweep_of(place, config, OPTUNA)
    assert (sweep.sampler, sweep.optuna_sampler, sweep.optuna_pruner) == (Sampler.OPTUNA, "tpe", "median")


def test_optuna_is_refused_if_the_applicationmaster_lacks_it(
    place: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{MINIMAL}[sweep]\n{OPTUNA}"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (fault,) = refused(place, text, config)
    assert "sweep.sampler: needs Optuna, which is not installed here: pip install optuna numpy" in fault
    with pytest.raises(
        FileRefused, match=r"sweep\.sampler: needs yarn\.python_archive, an archive of Python with optuna"
    ):
        read(place, text, config, ON_HDFS)
    own = {"yarn.python_archive": "hdfs:///python.tar.gz"}
    with_archive = load_config(own, environ={"HOME": missing()}, system_file=missing())
    assert read(place, text, with_archive, ON_HDFS).spec.sweep is not None


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("", "sweep: has no parameters: grid.NAME is missing"),
        ("grid.lr=\n", "sweep.grid.lr: is empty"),
        ("grid.lr=,\n", "sweep.grid.lr: has no values"),
        ("grid.lr=1, 2, 1\n", "sweep.grid.lr: has '1' twice"),
        ('grid.lr="1\n', "sweep.grid.lr: the quote"),
        ("grid.l r=1\n", "sweep.grid.l r: 'l r' is not the name of a variable"),
        ("grid.=1\n", "sweep.grid.: '' is not the name of a variable"),
        ("grid.DLAPP_X=1\n", "sweep.grid.DLAPP_X: is set by dlapp"),
        ("grid.trial=1\n", "sweep.grid.trial: cannot be set: {trial} in an argument is a number that dlapp sets"),
        ("grid.lr=1\nrandom.lr=uniform(0, 1)\n", "sweep: has random.NAME, which has no effect with sampler=grid"),
        ("grid.lr=1\nseed=3\n", "sweep.seed: has no effect with sampler=grid, which draws nothing"),
        ("grid.lr=1, 2\ntrials=3\n", "sweep.trials: is 3, the grid has 2"),
        ("grid.lr=1\ntrials=0\n", "sweep.trials: is 0, the minimum is 1"),
        ("random.lr=uniform(0, 1)\n", "sweep.trials: is missing: how many trials are drawn"),
        ("random.lr=uniform(1, 0)\ntrials=1\n", "sweep.random.lr: the upper bound 0 is not above the lower one, 1"),
        ("random.lr=uniform(0)\ntrials=1\n", "sweep.random.lr: uniform needs two bounds, as in uniform(1, 10)"),
        ("random.lr=uniform(0, nan)\ntrials=1\n", "sweep.random.lr: 'nan' is not a number"),
        ("random.lr=loguniform(0, 1)\ntrials=1\n", "sweep.random.lr: the lower bound of loguniform is 0, it must be"),
        ("random.lr=int(0.5, 3)\ntrials=1\n", "sweep.random.lr: the bounds of int are whole numbers"),
        (
            "random.lr=unifrom(0, 1)\ntrials=1\n",
            "sweep.random.lr: 'unifrom' is not a distribution, the nearest is unif",
        ),
        ("random.lr=0.1, 0.2\ntrials=1\n", "sweep.random.lr: '0.1, 0.2' is not a distribution: uniform(0, 1), loguni"),
        ("random.lr=choice()\ntrials=1\n", "sweep.random.lr: has no values"),
        ("grid.lr=1\nmetric=acc uracy\ngoal=max\n", "sweep.metric: 'acc uracy' is not a metric: 1 to 64 letters"),
        ("grid.lr=1\nmetric=accuracy\n", "sweep.goal: is missing: max or min, for which metric is better"),
        ("grid.lr=1\nmetric=a\ngoal=maximum\n", "sweep.goal: is 'maximum', allowed are max, min"),
        ("grid.lr=1\ngoal=max\n", "sweep.goal: has no effect without metric"),
        ("grid.lr=1\nasha=1,2:2\n", "sweep.asha: has no effect without metric"),
        (
            "grid.lr=1\nmetric=a\ngoal=max\nasha=1, 9, 3: 3\n",
            "sweep.asha: the rung 3 is not above 9, the one before it",
        ),
        ("grid.lr=1\nmetric=a\ngoal=max\nasha=1, 1: 3\n", "sweep.asha: the rung 1 is not above 1, the one before it"),
        ("grid.lr=1\nmetric=a\ngoal=max\nasha=0, 1: 3\n", "sweep.asha: a rung is 0, the minimum is 1"),
        ("grid.lr=1\nmetric=a\ngoal=max\nasha=1, x: 3\n", "sweep.asha: the rung 'x' is not a whole number"),
        ("grid.lr=1\nmetric=a\ngoal=max\nasha=1, 3\n", "sweep.asha: '1, 3' is not RUNGS:FACTOR, such as 1, 3, 9: 3"),
        ("grid.lr=1\nmetric=a\ngoal=max\nasha=1, 3: 1\n", "sweep.asha: the factor is 1, it must be above 1"),
        (
            "grid.lr=1\nconcurrency=4\n",
            "sweep.concurrency: is 4, and 1 trials can run at once (containers=1, trials_per",
        ),
        ("grid.lr=1\ntrial_time=0\n", "sweep.trial_time: is 0 s, it must be above 0"),
        ("grid.lr=1\ncommit=now\n", "sweep.commit: is 'now', allowed are end, trial"),
        ("grid.lr=1\npruner=median\n", "sweep.pruner: has no effect without sampler=optuna:NAME"),
        ("grid.lr=1\nsampler=random\n", "sweep: has no parameters: random.NAME is missing"),
        (
            "sampler=optuna:tpee\ngrid.lr=1\n",
            "sweep.sampler: is 'optuna:tpee', allowed are grid, random, list, optuna:",
        ),
        ("sampler=optuna:tpe\nrandom.lr=uniform(0, 1)\ntrials=1\n", "sweep.metric: is missing: Optuna learns from it"),
        ("list=trials.csv\n", "trials.csv: No such file or directory"),
        ("grid.lr=1\ntrails=3\n", "sweep.trails: is not known, the nearest is trials"),
        ("grid.lr=1\nnum_samples=3\n", "sweep.num_samples: is not known, use trials"),
        ("gird.lr=1\ngrid.n=1\n", "sweep.gird.lr: is not known, the nearest is grid.NAME"),
    ],
)
def test_invalid_values_are_refused_by_name(place: Path, config: Config, section: str, problem: str) -> None:
    faults = refused(place, f"{MINIMAL}[sweep]\n{section}", config)
    assert any(problem in fault for fault in faults), faults
    assert len(faults) <= 2, faults


def test_the_rows_of_a_list_that_lack_a_column_are_named(place: Path, config: Config) -> None:
    (place / "trials.csv").write_text("lr,batch\n0.1\n0.01,64\n7\n")
    faults = refused(place, f"{MINIMAL}[sweep]\nlist=trials.csv\n", config)
    assert [fault.partition("sweep.list: ")[2] for fault in faults] == [
        f"{place}/trials.csv:2: has 1 values, the header has 2: lr, batch",
        f"{place}/trials.csv:4: has 1 values, the header has 2: lr, batch",
    ]
    (place / "trials.csv").write_text("lr,learning rate\n0.1,1\n")
    (fault,) = refused(place, f"{MINIMAL}[sweep]\nlist=trials.csv\n", config)
    assert "sweep: the parameter 'learning rate' 'learning rate' is not the name of a variable" in fault


def test_all_faults_are_named_at_once(place: Path, config: Config) -> None:
    text = "[sweep]\ngrid.lr=1, 1\nmetric=a b\nasha=3, 1: 2\nconcurrency=0\ncommit=x\ngoal=max\nseed=1\n"
    faults = refused(place, MINIMAL + text, config)
    keys = ["grid.lr", "metric", "asha", "concurrency", "commit", "seed"]
    assert [key for key in keys if not any(f"sweep.{key}: " in fault for fault in faults)] == []
    assert len(faults) == len(keys), faults


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("[role a]\n[role b]\n", "sweep: needs one kind of containers, and the application has roles"),
        ("[checkpoint]\npath=m\nhdfs=c\n", "checkpoint: is not possible in a sweep"),
    ],
)
def test_keys_that_a_sweep_excludes_are_refused(place: Path, config: Config, more: str, problem: str) -> None:
    assert any(problem in fault for fault in refused(place, MINIMAL + more + GRID, config))
    for key, expected in (
        ("framework=pytorch\n", "application.framework: is pytorch, and the trials of a sweep run in one container"),
        ("gang=all\n", "application.gang: is all, and the containers of a sweep do not start together"),
        ("env.lr=1\n", "sweep: the parameter lr is a variable of the application, too"),
    ):
        assert any(expected in fault for fault in refused(place, MINIMAL + key + GRID, config))


def test_a_list_that_is_a_fifo_is_not_waited_for(place: Path, config: Config) -> None:
    os.mkfifo(place / "t.csv")
    for flags in (os.O_RDONLY, os.O_RDWR):  # without a writer, and with one that writes nothing
        fd = os.open(place / "t.csv", flags | os.O_NONBLOCK)
        try:
            (fault,) = refused(place, f"{MINIMAL}[sweep]\nlist=t.csv\n", config)
        finally:
            os.close(fd)
        assert "t.csv: has no trials" in fault


def test_too_large_grids_and_lists_are_refused(place: Path, config: Config) -> None:
    values = ", ".join(map(str, range(101)))
    (fault,) = refused(place, f"{MINIMAL}[sweep]\ngrid.a={values}\ngrid.b={values}\n", config)
    assert "sweep: has 10201 trials, the maximum is 10000; trials=N takes the first N" in fault
    assert sweep_of(place, config, f"grid.a={values}\ngrid.b={values}\ntrials=10000\n").trials == 10_000
    (place / "t.csv").write_text("a\n" + "".join(f"{number:01000}\n" for number in range(200)))
    (fault,) = refused(place, f"{MINIMAL}[sweep]\nlist=t.csv\n", config)
    assert "sweep: has 195 KiB of values, the maximum is 128 KiB" in fault


def test_a_spec_refuses_the_same_values_as_a_file() -> None:
    sweep = SweepSpec(sampler=Sampler.GRID, trials=2, grid=(GridParameter("lr", ("1", "2")),))
    AppSpec(username="u", appname="a", command=("x",), sweep=sweep)
    for changes in (
        {"roles": (RoleSpec(name="a"), RoleSpec(name="b"))},
        {"framework": Framework.PYTORCH},
        {"checkpoint": CheckpointSpec(path="m", target="file:///c")},
        {"env": ("lr",)},
        {"sweep": replace(sweep, concurrency=2)},
        {"sweep": replace(sweep, grid=(GridParameter("a b", ("1", "2")),))},
    ):
        with pytest.raises(SpecError, match=r"^(sweep|application|checkpoint)"):
            AppSpec(**{"username": "u", "appname": "a", "command": ("x",), "sweep": sweep, **changes})  # type: ignore[arg-type]
    for field, value in (("trials", 0), ("trials", True), ("retries", -1), ("trial_time_s", 0.0), ("metric", "a")):
        with pytest.raises(SpecError, match=r"^sweep\."):
            replace(sweep, **{field: value})


def test_a_sweep_has_its_concurrency_and_maximum_duration() -> None:
    values = tuple(map(str, range(10)))
    sweep = SweepSpec(sampler=Sampler.GRID, trials=10, grid=(GridParameter("a", values),), trials_per_container=2)
    assert sweep.concurrency_of(3) == 6
    assert sweep.longest_s(3) is None
    sweep = replace(sweep, trial_time_s=60.0, retries=1, concurrency=4)
    assert sweep.concurrency_of(3) == 4
    assert sweep.longest_s(3) == 3 * 2 * 60.0


def test_one_hundred_thousand_values_are_compared_in_time_that_grows_as_their_number() -> None:
    values = ", ".join(map(str, range(100_000)))
    assert len(read_values(values)) == 100_000
    with pytest.raises(ValueError, match="has '99999' twice"):
        read_values(f"{values}, 99999")
