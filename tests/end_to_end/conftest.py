"""Fixtures of the tests of whole applications."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.debian import PYTHON
from tests.services.http.http_server import http_server
from tests.services.http.webhook import Hook


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """Yield a webhook that the user has configured."""
    found = Hook()
    with http_server(found.answer) as url:
        secret = tmp_path / "hook"
        secret.write_text(f"{url}/secret\n")
        secret.chmod(0o600)
        monkeypatch.setenv("DLAPP_NOTIFY_WEBHOOK", str(secret))
        yield found


@pytest.fixture(scope="session")
def torch() -> None:
    """PyTorch for Debian's Python; tests.services.install brings it."""
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip(f"no PyTorch for {PYTHON} (package python3-torch)")
