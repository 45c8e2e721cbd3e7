"""dlapp-shell and dlapp-run: a payload's environment by hand, and nothing of it left when it closes."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

import dlapp
from tests.applications import BIN, Done, ended, processes, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd, busybox_root
from tests.services.containers.nvml_stub import MIB, Part, StubDevice, seen_by_all, with_devices
from tests.services.containers.registry import Registry
from tests.tools.terminal import Terminal


def shell(file: Path, script: str, *args: str, env: Mapping[str, str] | None = None) -> Done:
    """Run ``script`` in a shell without a terminal."""
    done = subprocess.run(
        [BIN / "dlapp-shell", *args, file],
        input=script,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **(env or {})},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def sessions(state_dir: Path) -> list[Path]:
    return list(state_dir.glob("*/shells/*/sessions/*"))


def leftovers(state_dir: Path) -> list[str]:
    """Return what still works under the state directory, or has a session's directory in its environment."""
    return [process.command for process in processes(state_dir) if process.role not in ("runner", "am", "task")]


def test_the_shell_is_the_payloads_environment_in_the_users_own_workspace(tmp_path: Path, state_dir: Path) -> None:
    file = properties(tmp_path, "true", application={"env.GREETING": "hi there"})
    done = shell(
        file,
        'echo "$PWD|$CONTAINER_INDEX|$NUM_CONTAINERS|$DLAPP_ROLE|$GREETING|$CUDA_VISIBLE_DEVICES|"\n'
        "echo edited > note\nexit 7\n",
    )
    assert done.code == 7, done.err
    assert done.out == f"{tmp_path}/test_workspace|0|1|worker|hi there||\n"
    assert (tmp_path / "test_workspace" / "note").read_text() == "edited\n"
    assert sessions(state_dir) == []
    assert leftovers(state_dir) == []


def test_the_shell_notes_unexpanded_values_and_selected_gpus(tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"env.LIBRARIES": "lib:$HOME/lib"})
    done = shell(file, "true\n", env={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert done.code == 0, done.err
    assert "env.LIBRARIES: $NAME, $(command) and ~ are not replaced in variables" in done.err
    assert "CUDA_VISIBLE_DEVICES: set here without effect; dlapp chooses the GPUs that it leases" in done.err


def test_the_shell_has_the_caches_of_the_applications_and_holds_them(tmp_path: Path) -> None:
    file = properties(
        tmp_path, 'cat "$DLAPP_CACHE_MODELS/model"', application={"cache.models": "/models", "cache.pip": "/pip"}
    )
    done = shell(
        file,
        'echo "$DLAPP_CACHE_MODELS"; echo large >"$DLAPP_CACHE_MODELS/model"; cd "$DLAPP_CACHE_PIP"\n'
        f'"{BIN}/dlapp-cache" list\n',
    )
    assert done.code == 0, done.err
    path, *listed = done.out.splitlines()
    assert Path(path, "model").read_text() == "large\n"
    assert [(line.split()[0], "in use" in line) for line in listed[1:]] == [("cache.models", True), ("cache.pip", True)]
    assert "in use" not in run("dlapp-cache", "list").out
    assert run("dlapp-launcher", "--wait", file).code == 0
    assert run("dlapp-logs").out == "[0] large\n"
    forbidden = {"DLAPP_STORAGE_PAYLOAD_CACHE_LIMIT": "0"}
    refused = shell(file, "echo no", env=forbidden)
    assert (refused.code, refused.out) == (2, "")
    assert "storage.payload_cache_limit" in refused.err


@on_yarn_when_full
def test_input_is_fetched_once_and_existing_files_are_kept(engine: Engine, tmp_path: Path) -> None:
    engine.put("source/one", "1")
    engine.put("source/deep/two", "2")
    file = properties(tmp_path, "true", from_hdfs={"hdfs": f"{engine.root}/source/*", "input_path": "data"})
    data = tmp_path / "test_workspace" / "data"
    assert shell(file, "", "--no-input").code == 0
    assert not data.exists()
    done = shell(file, "echo mine > data/one\n")
    assert done.code == 0, done.err
    assert (data / "deep" / "two").read_text() == "2"
    done = shell(file, "cat data/one")
    assert done.out == "mine\n"
    assert "data/one already exists: kept as it is" in done.err
    assert sorted(os.listdir(data)) == ["deep", "one"]


@pytest.mark.slow
@on_yarn_when_full
def test_dlapp_run_submits_the_workspace_as_it_is_now(engine: Engine, tmp_path: Path) -> None:
    source = engine.put("source", "from the source")
    file = properties(tmp_path, "exit 9", from_hdfs={"hdfs": source, "input_path": "."})
    done = shell(
        file,
        'printf "#!/bin/sh\\ncat source; echo \\$DLAPP_APP_ID\\n" > start.sh\n'
        "dlapp-run --wait; echo code $?\n"
        "dlapp-run --nonsense; echo code $?\n"
        "dlapp-run two words; echo code $?\n"
        "dlapp-run --print-spec | grep -c appname\n",
    )
    lines = done.out.splitlines()
    application = status("last")["application_id"]
    assert lines[0] == "C3 DL Cluster Version check : ok"
    assert f"DL App ID = {application}" in lines
    assert [line for line in lines if line.startswith("code")] == ["code 0", "code 2", "code 2"]
    assert "source is not packed: dlapp-shell copied it" in done.err
    assert re.search(r"^succeeded after 0:\d\d:\d\d$", done.out, re.MULTILINE)
    assert "Error: No such option" in done.err
    assert run("dlapp-logs", "--container", "0", "--stdout").out == f"from the source{application}\n"
    # Outside the shell the same workspace can be submitted as well.
    again = run("dlapp-launcher", "--wait", file)
    assert again.code == 0, again.err


@pytest.mark.proves("shell-options")
@pytest.mark.slow
def test_dlapp_run_accepts_resources_variables_and_arguments_but_no_files(tmp_path: Path) -> None:
    file = properties(tmp_path, 'echo "$P"; for word; do echo "<$word>"; done')
    done = shell(
        file,
        "dlapp-run --wait --set resources.containers=2 --env 'P=a/b: %' -- 'x y' '' \"it's\" '{index}'; echo code $?\n"
        "dlapp-run --set application.env_file=/etc/passwd; echo code $?\n"
        "dlapp-run --env TOKEN; echo code $?\n"
        "dlapp-run --env 'P=\u00e4'; echo code $?\n"
        'dlapp-run --env "P=$(printf %05000d 0)"; echo code $?\n',
        env={"TOKEN": "hush"},
    )
    assert [line for line in done.out.splitlines() if line.startswith("code")] == ["code 0", *["code 2"] * 4]
    assert run("dlapp-logs", "--container", "1", "--stdout").out.splitlines() == [
        *("a/b: %", "<x y>", "<>", "<it's>", "<1>")
    ]
    assert "inside dlapp-shell only keys of [resources] can be set" in done.err
    assert "--env TOKEN: is not set here" in done.err
    assert "printable ASCII" in done.err
    assert "too long" in done.err


def test_dlapp_run_outside_a_shell_names_dlapp_shell() -> None:
    done = run("dlapp-run")
    assert (done.code, done.out) == (2, "")
    assert done.err == "Error: dlapp-run works inside dlapp-shell only (outside it is: dlapp-launcher FILE)\n"


@pytest.mark.slow
def test_dlapp_run_finds_its_shell_when_path_was_changed(tmp_path: Path) -> None:
    done = shell(properties(tmp_path, "true"), f'PATH="{BIN}:$PATH"\ndlapp-run --wait; echo code $?\n')
    assert done.out.endswith("code 0\n"), done.err


@pytest.mark.parametrize("message", ["", "no line end", "{ half of something", "a line\n"])
def test_with_json_the_last_line_is_the_result_after_any_output(tmp_path: Path, message: str) -> None:
    done = shell(properties(tmp_path, "true"), f"printf '%s' '{message}'; exit 3", "--json")
    assert done.code == 3
    assert json.loads(done.out.splitlines()[-1]) == {"exit_code": 3}
    assert done.out.startswith(message)


@pytest.mark.slow
def test_dlapp_run_works_where_pip_put_dlapp_into_the_users_own_site(tmp_path: Path, state_dir: Path) -> None:
    venv.create(tmp_path / "python", system_site_packages=True, symlinks=True)
    python = tmp_path / "python" / "bin" / "python"
    ask = "import site; print(site.USER_SITE)"
    output = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True, timeout=240).stdout
    site = Path(output.strip())
    assert site.is_relative_to(state_dir.parent)
    shutil.copytree(Path(dlapp.__file__).parent, site / "dlapp")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")  # what dlapp needs
    file = properties(tmp_path, "true")
    inside = "dlapp-run --wait; echo code $?\n"
    command: list[str | Path] = [python, "-P", "-m", "dlapp.tools", "shell", file]
    done = subprocess.run(command, input=inside, capture_output=True, text=True, timeout=240)
    assert done.stdout.endswith("code 0\n"), done.stderr
    assert "\nsucceeded after 0:0" in done.stdout


@on_yarn_when_full
def test_ctrl_c_in_dlapp_run_detaches(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "sleep 600")
    with Terminal("dlapp-shell", file) as terminal:
        terminal.type("dlapp-run --wait\n")
        terminal.expect("RUNNING running")
        terminal.type("\x03")
        terminal.expect("Detached: application_")
        terminal.type("echo code $?\n")
        terminal.expect("^code 130")
        assert status("last")["state"] == "RUNNING"
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    assert status("last")["state"] == "RUNNING"
    assert run("dlapp-kill", "last").code == 0


@pytest.mark.parametrize(
    ("venv_dir", "rc", "prompt"),
    [
        (None, "", r"^\(dlapp\) .*[$#] $"),
        ("/x/.venv", "PS1='> '", r"^\(dlapp\) \(\.venv\) > "),
        ("/x/$(echo bad)", "PS1='> '", r"^\(dlapp\) > "),
        ("/x/v", "PS1='(v) > '", r"^\(dlapp\) \(v\) > "),
    ],
)
def test_the_prompt_shows_the_shell(tmp_path: Path, venv_dir: str | None, rc: str, prompt: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text(f"alias mine='echo of the user'\n{rc}\n")
    env = {"HOME": str(home), **({"VIRTUAL_ENV": venv_dir} if venv_dir else {})}
    with Terminal("dlapp-shell", properties(tmp_path, "true"), env=env) as terminal:
        terminal.expect(prompt)
        terminal.type("mine\n")
        terminal.expect("^of the user")
        terminal.type("exit 0\n")
        assert terminal.wait() == 0


@pytest.mark.parametrize(
    "rc",
    [
        "export PATH=/usr/bin:/bin\ncd /\nexport CUDA_VISIBLE_DEVICES=7",
        "export TMPDIR=/nowhere CONTAINER_INDEX=5 DLAPP_ROLE=rc GREETING=rc; PATH=/of/the/user:/usr/bin:/bin",
        "unset DLAPP_SHELL_DIR DLAPP_WORKSPACE CUDA_VISIBLE_DEVICES GREETING",
        "cd() { echo never; }; builtin cd /; IFS=:; set -u; CDPATH=/; export CUDA_VISIBLE_DEVICES=0,1",
        "cd /usr; export CUDA_DEVICE_ORDER=FASTEST_FIRST; return 3",
    ],
)
def test_variables_of_bashrc_are_not_in_the_programs_environment(tmp_path: Path, rc: str) -> None:
    (home := tmp_path / "home").mkdir()
    (home / ".bashrc").write_text(f"alias mine='echo of the user'\n{rc}\n")
    file = properties(tmp_path, "true", application={"env.GREETING": "hi  there\\n$x"})
    shown = (
        'echo "$PWD|$TMPDIR|$CONTAINER_INDEX|$DLAPP_ROLE|$GREETING|$CUDA_VISIBLE_DEVICES|$CUDA_DEVICE_ORDER"'
        ' "$(command -v dlapp-run | sed s,.*/shells/.*/shared/,,)" "${DLAPP_SHELL_VARIABLES-none}|${PATH##*:}"\n'
    )
    env = {"HOME": str(home), "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(home)}
    with Terminal("dlapp-shell", file, env=env) as terminal:
        terminal.expect(r"\(dlapp\) ")
        terminal.type("mine\n")
        terminal.expect("^of the user")
        terminal.resize(24, 500)
        terminal.type(shown)
        line = rf"{tmp_path}/test_workspace|{home}|0|worker|hi  there\n$x||PCI_BUS_ID bin/dlapp-run none|"
        terminal.expect("^" + re.escape(line))
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    assert "never" not in terminal.text.replace("echo never", "")


def test_the_prompt_without_bash_shows_the_shell_too(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "python3"):
        (tools / name).symlink_to(shutil.which(name) or "")
    with Terminal("dlapp-shell", properties(tmp_path, "true"), env={"PATH": str(tools)}) as terminal:
        terminal.expect(r"^\(dlapp\) \$ ")
        terminal.type("exit 0\n")
        assert terminal.wait() == 0


@pytest.mark.slow
def test_the_script_can_be_written_in_the_shell(tmp_path: Path) -> None:
    file = properties(tmp_path, "true")
    (tmp_path / "test_workspace/start.sh").unlink()
    done = shell(file, "dlapp-run; echo code $?\necho true >start.sh\ndlapp-run --wait; echo code $?\n")
    assert [line for line in done.out.splitlines() if line.startswith("code")] == ["code 2", "code 0"]
    assert "there is no such file" in done.err


def test_the_shell_has_job_control_and_restores_the_terminal(tmp_path: Path, state_dir: Path) -> None:
    with Terminal("dlapp-shell", properties(tmp_path, "true")) as terminal:
        terminal.expect("dlapp-run submits it, exit closes")
        terminal.type("sleep 100\n")
        wait_for("sleep runs", lambda: any("sleep 100" in item for item in leftovers(state_dir)))
        terminal.type("\x1a")
        terminal.expect("Stopped +sleep 100")
        terminal.type("fg\n")
        terminal.expect("^sleep 100")

        def interrupted() -> bool:
            # bash says what it brings to the foreground a moment before it does; until then Ctrl-C is bash's own.
            terminal.type("\x03")
            return not any("sleep 100" in item for item in leftovers(state_dir))

        wait_for("Ctrl-C ends it", interrupted)
        terminal.type("echo still $((40 + 2))\n")
        terminal.expect("^still 42")
        terminal.type("exit 3\n")
        assert terminal.wait() == 3
    assert leftovers(state_dir) == []


def test_programs_started_in_the_shell_end_with_it(tmp_path: Path, state_dir: Path) -> None:
    done = shell(properties(tmp_path, "true"), "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & exit 0")
    assert done.code == 0
    assert leftovers(state_dir) == []


@on_yarn_when_full
def test_an_application_submitted_inside_outlives_the_shell(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = properties(tmp_path, f'until [ -e "{go}" ]; do sleep 0.02; done', name="inside")
    done = shell(properties(tmp_path, "true"), f"dlapp-launcher {file}; exit 0", env=_with_our_commands())
    assert done.code == 0, done.err
    assert "DL App ID" in done.out
    wait_for("it runs", lambda: status("last")["state"] == "RUNNING")
    go.touch()
    assert ended(status("last")["application_id"])["final_status"] == "SUCCEEDED"


def _with_our_commands() -> dict[str, str]:
    return {"PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang up", "SIGKILL", "SIGTERM", "SIGKILL of the keeper"])
def test_any_end_of_the_shell_leaves_no_process_and_no_lease(tmp_path: Path, state_dir: Path, how: str) -> None:
    devices = seen_by_all(tmp_path, [StubDevice(), StubDevice()])
    env = {**devices, "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus")}
    file = properties(tmp_path, "true")
    with Terminal("dlapp-shell", "--gcores", 2, file, env=env) as terminal:
        terminal.expect("GPU 0,1")
        terminal.type("nohup setsid sleep 100 > /dev/null 2>&1 &\n sleep 101\n")
        wait_for("both run", lambda: sum("sleep 10" in item for item in leftovers(state_dir)) == 2)
        assert shell(file, "", "--gcores", "1", env=env).code == 1
        match how:
            case "hang up":
                terminal.hang_up()
            case "SIGKILL":
                os.kill(terminal.pid, signal.SIGKILL)
            case "SIGTERM":
                os.kill(terminal.pid, signal.SIGTERM)
            case _:
                (keeper,) = [child.pid for child in processes(state_dir) if _name(child.pid) == "dlapp-exec"]
                os.kill(keeper, signal.SIGKILL)
        wait_for("nothing is left", lambda: leftovers(state_dir) == [])
    done = shell(file, 'echo "$NV_GPU $CUDA_VISIBLE_DEVICES"', "--gcores", "2", env=env)
    assert done.out == "0,1 GPU-00000000-aaaa-bbbb-cccc-000000000000,GPU-00000001-aaaa-bbbb-cccc-000000000000\n"
    assert sessions(state_dir) == []


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_more_gpus_than_are_free_are_refused_with_their_holders(tmp_path: Path) -> None:
    env = {**seen_by_all(tmp_path, [StubDevice()]), "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus")}
    file = properties(tmp_path, "true")
    with Terminal("dlapp-shell", "--gcores", 1, file, env=env) as terminal:
        terminal.expect("GPU 0")
        refused = shell(file, "", "--gcores", "1", env=env)
        assert refused.code == 1
        assert "needs 1 gcore, 0 free: application_" in refused.err
        assert "--wait waits for the GPUs" in refused.err
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    assert shell(file, "", "--gcores", "2", env=env).code == 2


def test_indexes_of_gpus_are_refused_where_one_is_split_as_at_submission(tmp_path: Path) -> None:
    devices = [StubDevice(mig=(Part("MIG-a"),)), StubDevice()]
    env = {**seen_by_all(tmp_path, devices), "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus")}
    file = properties(tmp_path, "true", resources={"gcores": 1, "memory": 64, "cuda_visible_devices": "index"})
    for _ in range(2):  # nothing stays leased
        refused = shell(file, "echo it ran", env=env)
        assert (refused.code, refused.out) == (2, "")
        assert "gpu0 of this machine is split by MIG, so CUDA's indexes are not those of the driver" in refused.err
    with_devices(tmp_path, devices[1:])
    assert shell(file, 'echo "$CUDA_VISIBLE_DEVICES"', env=env).out == "0\n"


@pytest.mark.slow
def test_devices_of_a_shell_are_inspected_before_the_next_lease(tmp_path: Path) -> None:
    env = {**seen_by_all(tmp_path, [StubDevice()]), "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus")}
    file = properties(tmp_path, "true")
    with Terminal("dlapp-shell", "--gcores", 1, file, env=env) as terminal:
        terminal.expect("GPU 0")
        with_devices(tmp_path, [StubDevice(used=700 * MIB)])
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    listed = run("dlapp-gpu", "list", env=env)
    assert "quarantined (700 MiB are in use by no known process" in listed.out, listed


def test_sh_serves_where_there_is_no_bash(tmp_path: Path) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    for name in ("sh", "sleep"):
        (only / name).symlink_to(f"/bin/{name}")
    done = shell(properties(tmp_path, "true"), "dlapp-run; echo code $?", env={"PATH": str(only)})
    assert done.out.endswith("code 0\n"), done.err
    ended(status("last")["application_id"])


# ---- in Docker ----


@pytest.mark.slow
def test_in_docker_it_is_the_image_with_the_users_own_workspace(
    dockerd: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("1")
    file = properties(
        tmp_path,
        "true",
        application={"docker_image": IMAGE, "env.GREETING": "hi there", "cache.models": "/models"},
        from_hdfs={"hdfs": source, "input_path": "data"},
    )
    env = {"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "none"}
    done = shell(
        file,
        'echo "$PWD|$CONTAINER_INDEX|$GREETING|$HOME|$DLAPP_INPUT|"; cat data/source; echo oh >&2\n'
        "echo kept >$DLAPP_CACHE_MODELS/model\n"
        "echo edited > note; ls /bin | head -n 1\ndlapp-run --wait; echo code $?\nexit 5\n",
        env=env,
    )
    assert done.code == 5, done.err
    lines = done.out.splitlines()
    assert lines[:2] == ["/workspace|0|hi there|/dlapp/home|/workspace/data|", "1busybox"], done.err
    assert lines[-1] == "code 0", done.err
    assert "oh\n" in done.err
    note = tmp_path / "test_workspace" / "note"
    assert note.read_text() == "edited\n"
    assert note.stat().st_uid == os.getuid()
    (cached,) = state_dir.glob("*/cache/*/payload/caches/models/model")
    assert cached.read_text() == "kept\n"
    wait_for("the container is removed", lambda: not dockerd.containers("label=dlapp.container"))
    assert sessions(state_dir) == []


@pytest.mark.parametrize("how", ["exit", "hang up", "SIGKILL"])
def test_in_docker_on_a_terminal_any_end_leaves_no_container(dockerd: Dockerd, tmp_path: Path, how: str) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE})
    env = {"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "none"}
    with Terminal("dlapp-shell", file, env=env) as terminal:
        terminal.expect(r"^\(dlapp\) .*[#$] ")
        terminal.type("sh -c 'echo ready; sleep 100'\n")
        terminal.expect("^ready")
        terminal.type("\x03")
        terminal.type("echo $((40 + 2)) still\n")
        terminal.expect("^42 still")
        match how:
            case "exit":
                terminal.type("exit 6\n")
                assert terminal.wait() == 6
            case "hang up":
                terminal.hang_up()
            case _:
                os.kill(terminal.pid, signal.SIGKILL)
        wait_for("the container is removed", lambda: not dockerd.containers("label=dlapp.container"))


@pytest.mark.slow
def test_in_docker_a_pull_with_the_users_credentials_is_a_bar_until_the_shell_opens(
    dockerd: Dockerd, tmp_path: Path
) -> None:
    env = {
        "DLAPP_RUNTIME_DOCKER_HOST": dockerd.host,
        "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
        "DOCKER_CONFIG": str(tmp_path),
    }
    root, login = busybox_root({"ballast": os.urandom(33 << 20)}), "tony:secret"
    with Registry(root, login=login, slow_s=30.0) as registry:
        auth = {"auth": base64.b64encode(login.encode()).decode()}
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: auth}}))
        file = properties(tmp_path, "true", application={"docker_image": registry.image})
        with Terminal("dlapp-shell", file, env=env) as terminal:
            terminal.expect(r"pulling +█*░+ 1 of 1, \d+%")
            terminal.expect(r"[1-9][\d.]* MiB of [\d.]+ MiB, [\d.]+ [KM]iB/s")
            registry.slow_s = 0.0
            terminal.expect("[#$] ")
            opened = len(terminal.text)
            terminal.type("echo $((40 + 2)); exit 6\n")
            terminal.expect("^42")
            assert terminal.wait() == 6
            assert "pulling" not in terminal.text[opened:]
        wait_for("the container is removed", lambda: not dockerd.containers("label=dlapp.container"))
        dockerd.docker("rmi", registry.image)


@pytest.mark.slow
def test_in_docker_gpus_are_leased_for_as_long_as_the_shell_lives(dockerd: Dockerd, tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"docker_image": GPU_IMAGE})
    env = {
        **seen_by_all(tmp_path, [StubDevice(), StubDevice()]),
        "DLAPP_RUNTIME_DOCKER_HOST": dockerd.host,
        "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
        "DLAPP_RUNTIME_DOCKER_GPU_MODE": "gpus",
        "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus"),
    }
    with Terminal("dlapp-shell", "--gcores", 1, file, env=env) as terminal:
        terminal.expect("GPU 0")
        terminal.expect("[#$] ")
        other = shell(file, "echo $NV_GPU; ls /dev/nvidia?; whoami | wc -l\n", "--gcores", "1", env=env)
        assert other.out == "1\n/dev/nvidia1\n1\n", other.err
        refused = shell(file, "", "--gcores", "2", env=env)
        assert refused.code == 1
        assert "needs 2 gcores, 1 free: application_" in refused.err
        os.kill(terminal.pid, signal.SIGKILL)
    both = shell(file, "ls /dev/nvidia? | wc -l\n", "--gcores", "2", "--wait", env=env)
    assert both.out == "2\n", both.err
    wait_for("the containers are removed", lambda: not dockerd.containers("label=dlapp.container"))


def test_a_missing_gpu_runtime_is_reported_and_no_device_leased(dockerd: Dockerd, tmp_path: Path) -> None:
    file = properties(tmp_path, "true", application={"docker_image": GPU_IMAGE})
    env = {
        **seen_by_all(tmp_path, [StubDevice()]),
        "DLAPP_RUNTIME_DOCKER_HOST": dockerd.host,
        "DLAPP_RUNTIME_DOCKER_NETWORK": "none",
        "DLAPP_RUNTIME_DOCKER_GPU_MODE": "cdi",
        "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus"),
    }
    done = shell(file, "echo it ran\n", "--gcores", "1", env=env)
    assert (done.code, done.out) == (1, "")
    assert "Error: runtime.docker.gpu_mode is cdi: Docker 20.10." in done.err
    assert "Traceback" not in done.err
    assert not dockerd.containers("label=dlapp.container")
