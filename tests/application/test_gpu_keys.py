"""Test the keys that choose the GPUs of a container: kind, memory, and the names that CUDA gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import Config
from dlapp.errors import FileRefused, SpecError
from dlapp.gpuid.needs import Demand, DeviceNeed, demands_of
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec, Placement, Resources, RoleSpec
from tests.application.test_description import MINIMAL, read

ROLES = """[application]
appname=a
user_dev_workspace_path=w
[resources]
gcores=1
gpu=mig
[role worker]
instances=4
gcores=2
gpu=whole
gpu_memory=1.5GB
script=s.sh
[role evaluator]
script=s.sh
gpu=MIG:1G.10GB+me
cuda_visible_devices=uuid
[role viewer]
script=s.sh
instances=3
"""


def test_a_role_has_its_own_kind_or_that_of_resources_and_all_together_are_demanded(
    place: Path, config: Config
) -> None:
    spec = read(place, ROLES, config).spec
    worker, evaluator, viewer = (spec.placement_of(role) for role in spec.roles)
    assert (worker.gpu, worker.gpu_memory_mb) == ("whole", 1500)
    assert (evaluator.gpu, evaluator.cuda_visible_devices) == ("mig:1g.10gb+me", "uuid")
    assert (viewer.gpu, viewer.gpu_memory_mb, viewer.cuda_visible_devices) == ("mig", 0, "auto")
    assert demands_of(spec) == (
        Demand(1, DeviceNeed("mig:1g.10gb+me")),
        Demand(8, DeviceNeed("whole", 1500)),
        Demand(3, DeviceNeed("mig")),
    )


@pytest.mark.parametrize(
    ("text", "memory_mb"), [("40g", 40_000), ("24GB", 24_000), ("1.125 g", 1_125), ("16000m", 16_000), ("0.5m", 1)]
)
def test_the_memory_of_a_gpu_counts_in_powers_of_1000(place: Path, config: Config, text: str, memory_mb: int) -> None:
    found = read(place, f"{MINIMAL}[resources]\ngpu_memory={text}\n", config).spec
    assert found.placement.gpu_memory_mb == memory_mb


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "gcores=2\ngpu=mig\n",
            ": resources.gcores: is 2 with gpu=mig, the maximum is 1: a program sees one slice only",
        ),
        (
            "gcores=1\ngpu=mig:1g.10gb\ncuda_visible_devices=index\n",
            ": resources.cuda_visible_devices: is index, and CUDA finds a MIG slice by its uuid only: use uuid, or "
            "gpu=whole",
        ),
    ],
)
def test_unusable_gpu_keys_are_refused_before_submission(place: Path, config: Config, keys: str, problem: str) -> None:
    with pytest.raises(FileRefused) as refused:
        read(place, f"{MINIMAL}[resources]\n{keys}", config)
    assert problem in str(refused.value)


def test_python_is_refused_the_same() -> None:
    role = RoleSpec(resources=Resources(gcores=2), script="s.sh")
    for placement, problem in (
        (Placement(gpu="mig"), "a program sees one slice only"),
        (Placement(gpu="half"), "'half' is not whole, mig or mig:PROFILE"),
        (Placement(gpu_memory_mb=-1), "is -1 MB, the minimum is 0"),
        (Placement(cuda_visible_devices="0,1"), "'0,1' is not one of auto, uuid, index"),
    ):
        with pytest.raises(SpecError, match=problem):
            AppSpec(username="tony", appname="a", workspace="/w", roles=(role,), placement=placement)


def test_a_placement_from_before_these_keys_means_whole_gpus_by_default_names() -> None:
    old = {name: value for name, value in to_json(Placement(spread=True)).items() if "gpu" not in name}
    del old["cuda_visible_devices"]
    assert from_json(Placement, old) == Placement(spread=True)
