"""Test what programs find in their environment besides what they ask for: caches of frameworks, threads and proxies."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import pytest

from tests.applications import ended, properties, run, status, wait_for
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine
from tests.services.containers.dockerd import IMAGE, Dockerd

COMPILES = """\
for directory in "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR" "$TFHUB_CACHE_DIR" "$TIKTOKEN_CACHE_DIR"; do
    mkdir -p "$directory"
    if [ -e "$directory/kernel" ]; then echo "found"; else echo "compiles"; echo 1 >"$directory/kernel"; fi
done
"""
only_local = pytest.mark.parametrize("engine", ["local"], indirect=True)


def ran(file: Path, *options: str, **env: str) -> list[str]:
    """Run an application to its end; return what it printed."""
    done = run("dlapp-launcher", "--wait", *options, file, env=env, timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    return printed("--container", "worker_0", "--stdout", id_of(done))


def test_compiled_kernels_are_reused_by_the_next_application(engine: Engine, tmp_path: Path) -> None:
    first = properties(tmp_path, f"{COMPILES}stat -c %a $(dirname $(dirname $TRITON_CACHE_DIR))", name="first")
    *compiled, mode = ran(first)
    assert (compiled, mode) == (["compiles"] * 4, "700")
    host = status("last")["containers"][0]["host"]
    placement = ("--set", f"resources.nodes={host}") if engine.hadoop is not None else ()  # a cache is a node's
    assert ran(properties(tmp_path, COMPILES, name="second"), *placement) == ["found"] * 4
    mine = ("--env", f"TRITON_CACHE_DIR={tmp_path}/mine", "--env", "TIKTOKEN_CACHE_DIR={cache.mine}")
    own = properties(tmp_path, COMPILES, name="own", application={"cache.mine": "/mine"})
    assert ran(own, *placement, *mine) == ["found", "compiles", "found", "compiles"]


@only_local
def test_the_caches_of_frameworks_are_listed_and_cleared(engine: Engine, tmp_path: Path) -> None:
    ran(properties(tmp_path, "true", name="without"))
    assert "cache.frameworks" not in run("dlapp-cache", "list").out
    file = properties(tmp_path, COMPILES)
    ran(file)
    assert "cache.frameworks" in run("dlapp-cache", "list").out
    assert run("dlapp-cache", "clear", "cache.frameworks").code == 0
    assert ran(file) == ["compiles"] * 4


@only_local
def test_without_caches_of_programs_there_are_none_of_frameworks(engine: Engine, tmp_path: Path) -> None:
    script = 'echo "[$TORCHINDUCTOR_CACHE_DIR$TRITON_CACHE_DIR]"'
    assert ran(properties(tmp_path, script), DLAPP_STORAGE_PAYLOAD_CACHE_LIMIT="0") == ["[]"]


@only_local
def test_trials_share_the_caches_and_the_threads_of_their_container(engine: Engine, tmp_path: Path) -> None:
    script = f'{COMPILES}echo "threads $OMP_NUM_THREADS"'
    file = properties(
        tmp_path,
        script,
        resources={"containers": 1, "vcores": 4},
        sweep={"grid.lr": "1, 2", "trials_per_container": 2, "concurrency": 1},
    )
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S, env={"DLAPP_LOCAL_VCORES": "4"})
    assert done.code == 0, done.err + done.out
    lines = [run("dlapp-logs", "--trial", number, "--stdout", id_of(done)).out.split("\n") for number in ("0", "1")]
    assert sorted(line for item in lines for line in item if line and "threads" not in line) == (
        ["compiles"] * 4 + ["found"] * 4
    )
    assert all("threads 2" in item for item in lines)


def test_a_program_without_a_framework_has_a_thread_for_each_vcore(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "echo $OMP_NUM_THREADS", resources={"vcores": 2})
    assert ran(file, DLAPP_LOCAL_VCORES="4", OMP_NUM_THREADS="7") == ["2"]
    assert ran(file, "--env", "OMP_NUM_THREADS=3", DLAPP_LOCAL_VCORES="4") == ["3"]
    passed = properties(tmp_path, "echo $OMP_NUM_THREADS", name="passed", application={"pass_env": "OMP_NUM_THREADS"})
    assert ran(passed, OMP_NUM_THREADS="5") == ["5"]


@only_local
def test_a_proxy_reaches_the_program_and_no_file_that_others_may_read(
    engine: Engine, tmp_path: Path, state_dir: Path
) -> None:
    proxy = "http://tony:hush-hush@proxy.example:3128"
    script = 'echo "${https_proxy#*@} $NO_PROXY $SSL_CERT_FILE [$HF_TOKEN$http_proxy]"; exec sleep 600'
    env = {"https_proxy": proxy, "http_proxy": proxy, "NO_PROXY": "x", "SSL_CERT_FILE": "/ca", "HF_TOKEN": "hush-hush"}
    done = run("dlapp-launcher", "--env", "HTTP_PROXY=", properties(tmp_path, script), env=env, timeout_s=END_S)
    assert "note: not passed: HF_TOKEN (pass_env)" in done.err
    assert "hush" not in done.err + done.out
    application = id_of(done)
    wait_for(
        "its output",
        lambda: printed("--container", "worker_0", "--stdout", application) == ["proxy.example:3128 x /ca []"],
    )
    secrets = files_with(state_dir, b"hush")
    assert secrets
    assert [secret for secret in secrets if stat.S_IMODE(secret.stat().st_mode) & 0o077] == []
    assert run("dlapp-kill", application).code == 0
    ended(application, END_S)
    assert files_with(state_dir, b"hush") == []


def files_with(directory: Path, text: bytes) -> list[Path]:
    found = []
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink() and text in path.read_bytes():
                found.append(path)
    return found


@pytest.mark.docker
@only_local
def test_in_docker_caches_of_frameworks_are_in_a_cache_of_the_user(
    engine: Engine, tmp_path: Path, dockerd: Dockerd
) -> None:
    proxies = {"https_proxy": "http://proxy.example:3128", "http_proxy": "http://127.0.0.1:1", "SSL_CERT_FILE": "/ca"}
    env = {"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host, **proxies}
    more = 'echo "$TRITON_CACHE_DIR $OMP_NUM_THREADS [$https_proxy $http_proxy $SSL_CERT_FILE]"'

    def file(name: str, **application: str) -> Path:
        of = {"docker_image": IMAGE, "network": "none", **application}
        return properties(tmp_path, f"{COMPILES}{more}", name=name, application=of)

    named = {"cache.models": "/models"}
    proxy = "[http://proxy.example:3128  ]"
    assert ran(file("a", **named), **env) == ["compiles"] * 4 + [f"/models/frameworks/triton 1 {proxy}"]
    assert ran(file("b", **named), **env) == ["found"] * 4 + [f"/models/frameworks/triton 1 {proxy}"]
    without = properties(
        tmp_path, more, name="c", application={"docker_image": IMAGE, "network": "none", "env.HTTPS_PROXY": ""}
    )
    assert ran(without, **env) == [" 1 [  ]"]
