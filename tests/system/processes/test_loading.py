"""Loading modules without garbage collection."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from dlapp.system.processes.loading import loading

COUNT = """
import gc
from dlapp.system.processes.loading import loading
collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))
with loading():
    import dlapp.task.steps
print(len(collections), gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_the_garbage_collector_skips_the_loading_and_the_loaded_objects() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True True\n"


def test_collection_is_on_again_after_an_error() -> None:
    # No `gc.unfreeze` afterwards: the collected tests, which conftest.py freezes, would be looked through ever after.
    gc.collect()
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled()
