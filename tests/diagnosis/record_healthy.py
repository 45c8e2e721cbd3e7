"""Record what real programs print in runs that end well: ``python -m tests.diagnosis.record_healthy [BEGINNING]``.

Each program of `cases` runs once, in an empty directory; one that does not end with 0, or is not installed, is left out
and named. ``healthy/recorded.json`` keeps the versions and, for each log, its name, stderr and stdout, of long ones
the lines in the first and the last `HALF` characters. Paths of this machine are changed. With the beginning of names
only those are recorded, and the others stay.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.services import debian

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("healthy") / "recorded.json"
HALF = 1200
LIMIT_S = 120
VERSIONS = (
    "bash",
    "gcc",
    "git",
    "java",
    "make",
    "mpirun",
    "openssl",
    "perl",
    "tar",
    "python -m pip",
    "python -m pytest",
)

STUDY = """import optuna, sys
def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    for step in range(5):
        trial.report(x * x + step, step)
        if {prune} and trial.should_prune():
            raise optuna.TrialPruned()
    if {fail} and trial.number % 3 == 2:
        raise {error}
    return x * x
study = optuna.create_study(sampler=optuna.samplers.{sampler}, pruner=optuna.pruners.{pruner})
study.optimize(objective, n_trials=12, catch=(Exception,))
"""

TRAINING = """import logging, os, sys, warnings
import numpy as np
logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")
random = np.random.default_rng(1)
x = random.normal(size=(256, 8)); y = x @ random.normal(size=8) + random.normal(size=256) / 10
w = np.zeros(8)
for epoch in range(20):
    for at in range(0, 256, 32):
        error = x[at:at + 32] @ w - y[at:at + 32]
        w -= 0.05 * x[at:at + 32].T @ error / 32
    loss = float(np.mean((x @ w - y) ** 2))
    {each}
{end}
"""

EACH = {
    "print": 'print(f"epoch {epoch}: loss {loss:.5f}, error rate {abs(error).mean():.4f}")',
    "logging": 'log.info("epoch %d loss %.5f", epoch, loss); log.debug("grad norm %.3f", np.linalg.norm(error))',
    "json": 'import json; print(json.dumps({"epoch": epoch, "loss": loss, "error": None, "failed": 0}))',
    "bar": "import sys; sys.stderr.write(f\"\\r{epoch + 1}/20 [{'#' * epoch}] loss {loss:.4f}\")",
    "overflow": "print(epoch, loss, np.exp(np.float64(800 + epoch)), np.log(np.zeros(1)))",
    "warnings": 'warnings.warn(f"loss {loss:.3f} does not improve: lower the learning rate", RuntimeWarning)',
    "saves": 'np.save(f"epoch-{epoch}.npy", w); print("saved", os.path.abspath(f"epoch-{epoch}.npy"), loss)',
}
"""What a training of NumPy does each epoch."""

END = {
    "": 'print("done", loss)',
    "retried": """for n in range(2):
    try:
        open("/nowhere/model.npy" if n == 0 else "model.npy", "wb").write(w.tobytes())
    except OSError:
        log.warning("the model could not be saved, trying again", exc_info=True)""",
}

TORCH = """import logging, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
logging.basicConfig(level=logging.INFO)
class Data(Dataset):
    def __len__(self): return 64
    def __getitem__(self, n): return torch.full((4,), n / 64), torch.tensor(n % 2)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
{before}
for epoch in range(3):
    for step, (x, y) in enumerate(DataLoader(Data(), 16{workers})):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}", flush=True)
{after}
"""

TORCH_CASES = {
    "plain": {},
    "workers": {"workers": ", num_workers=2"},
    "more workers than cores": {"workers": ", num_workers=9"},
    "scheduler": {"before": "torch.optim.lr_scheduler.StepLR(optimizer, 1).step()"},
    "anomalies": {"before": "torch.autograd.set_detect_anomaly(True)"},
    "autocast without a GPU": {"before": "scaler = torch.cuda.amp.GradScaler(); torch.autocast('cuda').__enter__()"},
    "no GPU": {"before": "print(torch.cuda.is_available(), torch.cuda.device_count())"},
    "checkpoint": {"after": "torch.save(model.state_dict(), 'm'); print(model.load_state_dict(torch.load('m')))"},
    "other checkpoint": {"after": "print(model.load_state_dict({'0.bias': torch.zeros(8)}, strict=False))"},
    "profiler": {
        "before": "profiler = torch.profiler.profile().__enter__()",
        "after": "profiler.__exit__(None, None, None); print(profiler.key_averages().table(row_limit=5))",
    },
    "script": {"before": "model = torch.jit.script(model); print(model.graph)"},
    "gloo": {
        "before": "import torch.distributed as d; "
        "d.init_process_group('gloo', init_method='file://' + __file__ + '.s', rank=0, world_size=1)",
        "after": "d.all_reduce(loss); d.barrier(); print(d.get_backend())",
    },
    "a batch that is too large": {
        "before": "for size in (1 << 48, 16):\n    try:\n        torch.zeros(size, 4)\n"
        "    except RuntimeError as error:\n        logging.warning('batch of %d: %s', size, error)"
    },
}
"""What each training of PyTorch does beside its loop."""

C = """#include <stdio.h>
#include <errno.h>
#include <string.h>
int unused(int error) {{ int failed; return 0; }}
int main(void) {{ {body} return 0; }}
"""


def cases() -> Iterator[tuple[str, str]]:
    """Yield names and shell commands; ``python`` is that of the tests."""
    errors = ("MemoryError('out of memory')", "OSError(28, 'No space left on device')", "TimeoutError('timed out')")
    samplers = ("RandomSampler(1)", "TPESampler(seed=1)")
    for number, sampler in enumerate(samplers):
        for prune, fail in ((False, False), (True, False), (False, True), (True, True)):
            text = STUDY.format(sampler=sampler, pruner="MedianPruner(1)", prune=prune, fail=fail, error=errors[number])
            yield f"optuna {sampler} {prune} {fail}", f"cat >study.py <<'E'\n{text}E\npython study.py"
    for sampler in ("NSGAIISampler(seed=1)", "GridSampler({'x': [-1, 0, 1]})", "BruteForceSampler(1)"):
        text = STUDY.format(sampler=sampler, pruner="NopPruner()", prune=False, fail=True, error=errors[2])
        text = text.replace("-10, 10", "-2, 2, step=1")
        yield f"optuna {sampler}", f"cat >study.py <<'E'\n{text}E\npython study.py"
    for each, end in itertools.product(EACH, END):
        text = TRAINING.replace("{each}", EACH[each]).replace("{end}", END[end])
        yield f"training numpy {each} {end}".strip(), f"cat >train.py <<'E'\n{text}E\npython train.py"
    for kind, parts in TORCH_CASES.items():
        text = TORCH.format(**{"before": "", "workers": "", "after": ""} | parts)
        yield f"training torch {kind}", f"cat >train.py <<'E'\n{text}E\n{debian.PYTHON} $PWD/train.py"
    for module in ("numpy", "optuna", "hypothesis", "requests", "kazoo.client", "fsspec", "sqlalchemy", "asyncio"):
        yield f"python -v {module}", f"python -v -c 'import {module}'"
        yield f"python importtime {module}", f"python -X importtime -c 'import {module}'"
        yield f"python dev {module}", f"python -X dev -W always -c 'import {module}; print({module}.__name__)'"
    for module in ("doctest", "timeit", "trace", "compileall"):
        given = {"timeit": "-v pass", "trace": "--count --summary -C . a.py", "compileall": ".", "doctest": "-v a.py"}
        text = 'def a(n):\n    """\n    >>> a(2)\n    4\n    """\n    return n * n\nprint(a(3))\n'
        yield f"python {module}", f"cat >a.py <<'E'\n{text}E\npython -m {module} {given[module]}"
    files = sorted(ROOT.glob("tests/values/**/test_*.py")) + sorted(ROOT.glob("tests/application/test_*.py"))
    files += sorted(ROOT.glob("tests/hadoop/**/test_*.py")) + sorted(ROOT.glob("tests/net/test_*.py"))
    files += sorted(ROOT.glob("tests/diagnosis/test_[fgrs]*.py")) + sorted(ROOT.glob("tests/gpuid/**/test_*.py"))
    for file in files:
        name = file.relative_to(ROOT)
        yield f"pytest {name}", f"cd {ROOT}; python -m pytest --collect-only -q -p no:cacheprovider {name}"
    for area in ("os", "pid,time", "startuptime", "gc", "class+load", "safepoint", "module", "cds"):
        yield f"java log {area}", f"java -Xlog:{area.split(',')[0]}*=debug -version"
    bodies = ("int x;", 'char a[2]; strcpy(a, "");', 'perror("read");', "puts(strerror(ENOMEM));", 'printf("%s", 1);')
    for number, body in enumerate(bodies):
        for words in ("-Wall -Wextra", "-v", "-Wall -fanalyzer"):
            text = C.format(body=body)
            yield f"gcc {number} {words}", f"cat >a.c <<'E'\n{text}E\ngcc {words} -c a.c"
    start = (
        "git init -q a; cd a; git config user.email a@b; git config user.name a; echo 1 >f; git add f; git commit -qm 1"
    )
    for words in (
        "fsck --full",
        "gc",
        "log --stat",
        "status",
        "count-objects -v",
        "reflog",
        "remote -v",
        "show",
        "repack",
    ):
        yield f"git {words}", f"{start}; git {words}"
        yield f"git trace {words}", f"{start}; GIT_TRACE=1 GIT_TRACE_SETUP=1 git {words}"
    for words in (
        "missing || true",
        "cd /nowhere || :",
        "kill -0 999999 || :",
        "sh -c 'kill -9 $$' || :",
        "rm nothing || :",
    ):
        yield f"bash {words}", f'bash -c "echo begin; {words.replace("$$", chr(92) + "$" + chr(92) + "$")}; echo end"'
        yield f"bash -x {words}", f'bash -xc "{words.replace("$$", chr(92) + "$" + chr(92) + "$")}; true"'
    for area in ("btl", "plm", "ess", "odls", "rmaps", "pml", "oob", "grpcomm"):
        words = f"--allow-run-as-root --oversubscribe --mca {area}_base_verbose 100"
        yield f"mpirun {area}", f"mpirun {words} -np 2 hostname | sed 's/'$(hostname)'/n1/g'"
    for kind in ("libs", "files", "bindings", "statistics", "versions"):
        yield f"ld.so {kind}", f"LD_DEBUG={kind} ls"
    for words in ("list", "check", "freeze"):
        yield f"pip {words}", f"python -m pip {words}"
    for words in ("version -a", "ciphers -v", "req -x509 -newkey rsa:2048 -nodes -subj /CN=a -keyout k"):
        yield f"openssl {words}", f"openssl {words}"
    yield "busybox dmesg --help", "busybox dmesg --help"
    yield "make -d", "printf 'a:\\n\\t-false\\n\\techo a\\n' >Makefile; make -d a"
    yield "perl -w", 'perl -we \'my $x; print "a$x\\n"; warn "read error, retrying"; open F, "/no" or warn $!\''


def run(case: tuple[str, str]) -> dict[str, str] | None:
    """Run a case; None: it did not end well."""
    name, command = case
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            ["timeout", "--kill-after=1", str(LIMIT_S), "bash", "-c", command],
            cwd=place,
            env={"PATH": path, "HOME": place, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    if done.returncode != 0 or not done.stdout + done.stderr:
        print(f"left out: {name}: exit code {done.returncode}", file=sys.stderr)
        return None

    def masked(data: bytes) -> str:
        text = data.decode(errors="replace").replace(place, "/data").replace(str(ROOT), "/src")
        text = re.sub(r"(/root|/home/\w+|/tmp)/[\w./-]*?(?=/lib/|/bin/|/pid|$)", "/opt", text, flags=re.MULTILINE)
        text = text.replace(os.uname().nodename, "n1")
        if len(text) <= 2 * HALF:
            return text
        return text[: text.rfind("\n", 0, HALF) + 1 or HALF] + text[-HALF:].partition("\n")[2]

    return {"name": name, "stderr": masked(done.stderr), "stdout": masked(done.stdout)}


def version(command: str) -> str:
    """Return the first line of what a program says of itself."""
    words = command.split()
    words[0] = sys.executable if words[0] == "python" else words[0]
    asks = "version" if words == ["openssl"] else "--version"
    done = subprocess.run([*words, asks], capture_output=True, text=True)
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "").partition(" from ")[0]


def main(beginning: str = "") -> None:
    """Record the cases whose names begin so, in the order of all."""
    previous = (
        {} if not beginning else {log["name"]: log for log in json.loads(FILE.read_text(encoding="utf-8"))["logs"]}
    )
    chosen = [case for case in cases() if case[0].startswith(beginning)]
    with ThreadPoolExecutor(4) as pool:
        previous |= {item["name"]: item for item in pool.map(run, chosen) if item is not None}
    logs = [previous[name] for name, _ in cases() if name in previous]
    versions = [version(item) for item in VERSIONS if shutil.which(item.split()[0])]
    versions += [f"{value} {importlib.metadata.version(value)}" for value in ("optuna", "numpy")]
    torch = subprocess.run(
        [debian.PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    versions.append(f"Debian's PyTorch {torch.stdout.strip()}")
    FILE.write_text(json.dumps({"versions": versions, "logs": logs}, indent=0, ensure_ascii=False) + "\n")
    print(f"{len(logs)} logs")


if __name__ == "__main__":
    main(*sys.argv[1:])
