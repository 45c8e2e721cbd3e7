"""The example of an inference server does what its README says."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.applications import ended, launch, run, status, wait_for

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "serve"
DATA = ROOT / "examples" / "digits" / "data" / "digits.csv.gz"


def predict(url: str, body: bytes) -> dict[str, object]:
    with urllib.request.urlopen(urllib.request.Request(f"{url}predict", body), timeout=60) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.slow
def test_the_service_answers_until_it_is_ended(tmp_path: Path, state_dir: Path) -> None:
    assert state_dir
    shutil.copytree(EXAMPLE, tmp_path / "serve")
    (tmp_path / "digits/data").mkdir(parents=True)
    shutil.copy(DATA, tmp_path / "digits/data")
    application = launch(tmp_path / "serve/dl_app.properties")

    def ready() -> str | None:
        urls = {link["name"]: link["url"] for link in status(application)["links"] if link["ready"]}
        return str(urls["api 0"]) if urls else None

    url = wait_for("the server", ready, 120)
    assert f"url health : {url}health\n".replace("127.0.0.1", "localhost") in run("dlapp-status", application).out
    answer = predict(url, (EXAMPLE / "request.json").read_bytes())
    assert (answer["digit"], len(list(answer["distances"]))) == (7, 10)  # type: ignore[call-overload]
    for wrong in (b"", b"[]", b'{"pixels": [1]}', b'{"pixels": ["a"]}', b"[" * 60_000):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            predict(url, wrong)
    assert run("dlapp-softkill", application).code == 0
    end = ended(application)
    assert (end["state"], end["final_status"]) == ("FINISHED", "KILLED")
    assert "stopped" in run("dlapp-logs", "--stderr", application).out


@pytest.mark.parametrize("numpy", [True, False])
def test_the_model_recognizes_most_digits_with_and_without_numpy(numpy: bool) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLE / "workspace")!r})
if not {numpy}:
    sys.modules["numpy"] = None
import csv, gzip, serve
means = serve.read_means({str(DATA)!r})
right = count = 0
for *pixels, digit in list(csv.reader(gzip.open({str(DATA)!r}, "rt")))[::10]:
    found = serve.distances(means, list(map(float, pixels)))
    right += found.index(min(found)) == int(digit)
    count += 1
print(right / count > 0.85, serve.np is not None)
"""
    if numpy:
        pytest.importorskip("numpy")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"True {numpy}\n"


def test_the_request_is_an_image_of_the_data() -> None:
    pixels = json.loads((EXAMPLE / "request.json").read_text())["pixels"]
    assert f"{','.join(map(str, pixels))},7" in gzip.decompress(DATA.read_bytes()).decode().split("\n")
