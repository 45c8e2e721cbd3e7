"""The files of the example of frameworks, and the page docs/frameworks.md; what the programs do:
tests/end_to_end/frameworks/in_trainers.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlapp.application.description import read_application
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.values.spec import Framework
from tests.services.missing import missing

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "frameworks"
PAGE = ROOT / "docs" / "frameworks.md"
TRAINERS = (ROOT / "tests/end_to_end/frameworks/in_trainers.py").read_text()
LIBRARIES = [
    *("PyTorch, DistributedDataParallel", "`torchrun`", "PyTorch Lightning", "transformers, `Trainer`", "accelerate"),
    *("DeepSpeed", "JAX", "TensorFlow, Keras", "tf_cnn_benchmarks", "Horovod", "mpi4py", "XGBoost"),
    *("LightGBM, scikit-learn", "MLflow, wandb"),
]


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("*.properties")))
def test_each_file_makes_an_application_that_the_readme_names_and_a_test_runs(file: str) -> None:
    config = load_config(environ={"HOME": missing()}, system_file=missing())
    found = read_application(str(FILES / file), config, EngineInfo(name="local", version="1", has_gpus=False)).spec
    assert found.framework is not Framework.NONE
    (program,) = [word for word in found.command if word.endswith(".py")]
    assert (FILES / "programs" / program).is_file()
    assert f"| `{file}` |" in (FILES / "README.md").read_text()
    assert f'"{file.removesuffix(".properties")}"' in TRAINERS


def test_the_page_has_a_row_for_each_library_with_a_framework_that_exists_and_an_example() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\|(?!-|library)", line)
    ]
    assert [row[0] for row in rows] == LIBRARIES
    for library, framework, output, checkpoint, example in rows:
        named = re.findall(r"`(\w+)`", framework.partition(", or")[0])
        assert set(named) <= {item.value for item in Framework}, library
        assert named or framework in ("none, in one container", "that of the training")
        assert output
        assert checkpoint
        assert "](../examples/" in example or "](#" in example


def test_the_programs_do_not_mention_dlapp() -> None:
    for program in (FILES / "programs").iterdir():
        assert "dlapp" not in program.read_text().lower()
