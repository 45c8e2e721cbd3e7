"""Test the notes on values that a shell or another program would interpret, and that dlapp does not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dlapp.application.build import Keywords
from dlapp.application.description import Source, UnresolvedSpec, describe
from dlapp.application.notes import submission_notes
from dlapp.application.overrides import NO_OVERRIDES, Overrides, read_set_options
from dlapp.cluster.engine import EngineInfo
from dlapp.config import load_config
from dlapp.errors import FileRefused
from dlapp.values.spec import AppSpec, RoleSpec
from tests.services.missing import missing

ENGINE = EngineInfo(name="local", version="1", has_gpus=True)
MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\n"
COMMAND = "[application]\nappname=a\nuser_dev_workspace_path=w\n"
NOT_REPLACED = ": $NAME, $(command) and ~ are not replaced in variables"
NO_SHELL = ": no shell reads this, so it is passed on as it is; use a start script, or command=sh -c '...'"


def notes(
    place: Path,
    source: Source,
    overrides: Overrides = NO_OVERRIDES,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the notes on an application; a text is the content of its file."""
    if isinstance(source, str):
        (place / "f").write_text(source)
        source = str(place / "f")
    config = load_config(options or {}, {"HOME": str(place)}, system_file=missing())
    found = describe(source, config, ENGINE, overrides, environ or {})
    found.problems.refuse()
    assert found.application is not None
    packed = [path.name for path in (place / "w").iterdir()]
    return submission_notes(found.application, config, environ or {}, str(place / "w"), packed)


def refused(place: Path, source: Source, overrides: Overrides = NO_OVERRIDES) -> list[str]:
    with pytest.raises(FileRefused) as refusal:
        notes(place, source, overrides)
    return [problem.replace(f"{place}/f:", "") for problem in refusal.value.problems]


# ---- variables ----


@pytest.mark.parametrize(
    "value",
    [
        "/opt/lib:$LD_LIBRARY_PATH",
        "${HOME}/lib",
        "${PYTHONPATH:-lib}",
        "$(pwd)/lib",
        "`pwd`/lib",
        "~/lib",
        "/opt/lib:~/lib",
        "~",
    ],
)
def test_a_variable_whose_value_a_shell_would_expand_is_noted_without_its_value(place: Path, value: str) -> None:
    (note,) = notes(place, f"{MINIMAL}env.LD_LIBRARY_PATH={value}\n")
    assert note.startswith(f"env.LD_LIBRARY_PATH{NOT_REPLACED}")
    assert "/lib" not in note


@pytest.mark.parametrize("value", ["cost: 5$", "^a$", "a~b", "a$1", "http://h/~user", ""])
def test_a_variable_that_a_shell_would_leave_as_it_is_has_no_note(place: Path, value: str) -> None:
    assert notes(place, f"{MINIMAL}env.A={value}\n") == []


def test_all_variables_share_one_note_wherever_they_are_set(place: Path) -> None:
    (place / "e").write_text("OF_FILE=$HOME/x\n")
    (place / "e").chmod(0o600)
    text = f"{COMMAND}command=true\nenv_file=e\nenv.A=$HOME\n[role ps]\nenv.B=~/x\n[role worker]\n"
    given = Overrides(read_set_options(["application.env.C=`id`"]), {"D": "$(id)"})
    (note,) = notes(place, text, given)
    assert note.startswith(f"env.A, env.C, env.OF_FILE, env.D, role ps env.B{NOT_REPLACED}")
    keywords = Keywords({"command": ["true"]}, {"A": "$HOME"})
    assert notes(place, keywords)[0].startswith(f"env.A{NOT_REPLACED}")
    spec = UnresolvedSpec(AppSpec(appname="a", username="u", command=("true",), env=("A",)), {"A": "$HOME"})
    assert notes(place, spec)[0].startswith(f"env.A{NOT_REPLACED}")
    many = "".join(f"env.A{number}=$HOME\n" for number in range(9))
    assert notes(place, MINIMAL + many)[0].startswith(
        f"env.A0, env.A1, env.A2, env.A3, env.A4 and 4 more{NOT_REPLACED}"
    )


def test_a_value_that_the_submitter_has_too_was_expanded_already(place: Path) -> None:
    text, environ = f"{MINIMAL}pass_env=PATTERN\n", {"PATTERN": "$a"}
    assert notes(place, text, environ=environ) == []
    assert notes(place, MINIMAL, Overrides(env={"PATTERN": "$a"}), environ) == []


@pytest.mark.parametrize("value", ["/opt/bin:$PATH", "${PATH}:/opt/bin", "/opt/bin:`getconf PATH`", "$(getconf PATH)"])
def test_a_path_variable_with_a_reference_is_refused_wherever_it_is_set(place: Path, value: str) -> None:
    problem = (
        "has $NAME in it, which is not replaced, so no program would be found; write all directories, or set PATH in a "
        "start script"
    )
    assert refused(place, f"{MINIMAL}env.PATH={value}\n") == [f"5: application.env.PATH: {problem}"]
    role = f"{COMMAND}command=true\n[role ps]\nenv.PATH={value}\n"
    assert refused(place, role) == [f"6: role ps.env.PATH: {problem}"]
    assert refused(place, MINIMAL, Overrides({"application.env.PATH": value})) == [
        f"--set: application.env.PATH: {problem}"
    ]
    assert refused(place, MINIMAL, Overrides(env={"PATH": value})) == [f"--env: PATH: {problem}"]
    (place / "e").write_text(f"PATH={value}\n")
    (place / "e").chmod(0o600)
    assert refused(place, f"{MINIMAL}env_file=e\n") == [f"5: application.env_file: {place}/e:1: {problem}"]
    assert refused(place, Keywords({"command": ["true"]}, {"PATH": value})) == [
        f"AppSpec: application.env.PATH: {problem}"
    ]
    assert notes(place, f"{MINIMAL}env.PATH=/opt/bin:/usr/bin\n") == []


# ---- commands and arguments ----


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 train.py --epochs 3 > train.log 2>&1", ">, 2>&1"),
        ("cd src && python3 train.py", "cd, &&"),
        ("python3 a.py; python3 b.py", "a.py;"),
        ("python3 a.py ; python3 b.py &", ";, &"),
        ("python3 a.py || true", "||"),
        ("python3 a.py|| true", "a.py||"),
        ("python3 a.py | tee log", "|"),
        ("python3 a.py 2>/dev/null", "2>/dev/null"),
        ("python3 a.py &>log", "&>log"),
        ("python3 a.py >>'my log' <in.txt", ">>, <in.txt"),
        ("python3 a.py <<EOF", "<<EOF"),
        ("diff <(sort a) b", "<(sort"),
        ("source venv/bin/activate", "source"),
        (". ./env.sh", "."),
        ("export A=b", "export"),
        ("CUDA_VISIBLE_DEVICES=2 python3 a.py", "CUDA_VISIBLE_DEVICES=2"),
        ("module load cuda", "module"),
        ("(cd src; make)", "(cd, src;"),
        ("python3 $HOME/a.py ${LR:-0.1} $(nproc) `id`", "$HOME, ${LR:-0.1}, $(, `"),
        ('python3 "$HOME/my data"', "$HOME"),
        ("python3 ~/a.py", "~/"),
        ("sh -c 'a > b' > c", ">"),
    ],
)
def test_shell_syntax_in_a_command_is_noted(place: Path, command: str, found: str) -> None:
    assert notes(place, f"{COMMAND}command={command}\n") == [f"command ({found}){NO_SHELL}"]


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'cd src && python3 a.py > $HOME/log; exit'",
        'bash -lc "cd $HOME && ./a > log"',
        "/usr/bin/env bash -e -c 'a|b'",
        "python3 a.py '>' \">\" \\> '$HOME' \\$HOME 'a && b' --re a|b --url http://h/?a=1&b=2",
        "find . -exec rm {} \\;",
        "python3 a.py --filter >=0.5 --token <pad> --arrow -> a~b $1 lr=0.1",
        "env A=b python3 a.py",
    ],
)
def test_quoted_text_and_shell_commands_have_no_note(place: Path, command: str) -> None:
    assert notes(place, f"{COMMAND}command={command}\n") == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--lr 0.1 | tee log.txt", "|"),
        ("--out $HOME/out", "$HOME"),
        ("--jobs $(nproc)", "$("),
        ("--lr $(LR)", "$("),
        ("--day `date`", "`"),
        ("--data ~/data", "~/"),
        ("OMP_NUM_THREADS=4 --lr 1", "OMP_NUM_THREADS=4"),
        ("export LR=1", "export"),
        ("source env.sh", "source"),
        ("cd src", "cd"),
        ("lr=0.1 model=big", ""),
        ("export --format onnx", ""),
        (". --verbose", ""),
    ],
)
def test_shell_syntax_in_arguments_is_noted(place: Path, arguments: str, found: str) -> None:
    expected = [f"user_shell_args ({found}){NO_SHELL}"] if found else []
    assert notes(place, f"{MINIMAL}user_shell_args={arguments}\n") == expected


def test_commands_of_files_options_keywords_and_specs_share_one_note(place: Path) -> None:
    text = (
        f"{COMMAND}command=true\nuser_shell_args=$A\n[role ps]\ncommand=true &\n[role worker]\nargs=> log\n"
        "[role chief]\n"
    )
    assert notes(place, text) == [f"user_shell_args ($A), role ps command (&), role worker args (>){NO_SHELL}"]
    given = Overrides(read_set_options(["application.user_shell_args=1 > log"]))
    assert notes(place, MINIMAL, given) == [f"user_shell_args (>){NO_SHELL}"]
    assert notes(place, MINIMAL, Overrides(args=("1", ">", "$HOME"))) == []  # the user's shell has read these
    roles = {"ps": {"command": "a | b"}, "worker": {"command": ["sh", "-c", "a>b;c"]}, "w": {}}
    expected = [f"args (>), role ps command (|){NO_SHELL}"]
    assert notes(place, Keywords({"command": ["true"], "roles": roles}, args=["1", ">", "two words > x"])) == expected
    role = RoleSpec(name="ps", command=("a", "|", "b"))
    spec = AppSpec(appname="a", username="u", command=("true",), args=(">",), roles=(RoleSpec(name="w"), role))
    assert notes(place, UnresolvedSpec(spec, {})) == expected


# ---- scripts ----


def note_on_script(place: Path, content: bytes, *, mode: int = 0o755) -> list[str]:
    (place / "w/s.sh").write_bytes(content)
    (place / "w/s.sh").chmod(mode)
    return notes(place, MINIMAL)


@pytest.mark.parametrize(
    ("before", "what"),
    [
        (b"\xef\xbb\xbf", "a byte order mark"),
        ("\u200b".encode(), "a zero-width space"),
        ("\u00a0".encode(), "a no-break space"),
        ("\u2060".encode(), "a word joiner"),
        ("\u3000".encode(), "an ideographic space"),
        ("\ufeff\u200b".encode(), "a byte order mark and a zero-width space"),
        (b"  ", "a blank"),
        (b"\n\n", "an empty line"),
        (b"\r\n", "an empty line"),
    ],
)
def test_bytes_before_the_first_line_are_noted_with_the_removing_command(
    place: Path, monkeypatch: pytest.MonkeyPatch, before: bytes, what: str
) -> None:
    script = b"#!/usr/bin/env python3\nprint('\xc3\xa4')\n"
    (note,) = note_on_script(place, before + script)
    beginning = f"s.sh begins with {what}, so its #! line has no effect: "
    assert note.startswith(f"{beginning}sed -i ")
    subprocess.run(note.removeprefix(beginning), shell=True, check=True, cwd=place)
    assert (place / "w/s.sh").read_bytes() == script
    assert notes(place, MINIMAL) == []


def test_the_command_for_a_byte_order_mark_is_the_known_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert note_on_script(place, b"\xef\xbb\xbf#!/bin/sh\n", mode=0o644) == [
        r"s.sh begins with a byte order mark, so its #! line has no effect: sed -i '1s/^\xef\xbb\xbf//' w/s.sh"
    ]
    (note,) = note_on_script(place, b"\xef\xbb\xbfecho 1\n")
    assert note.startswith("s.sh begins with a byte order mark, so it is read as part of the first word: sed -i ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_script_in_utf_16_is_noted(place: Path, encoding: str) -> None:
    assert note_on_script(place, "#!/bin/sh\necho\n".encode(encoding)) == [
        "s.sh is UTF-16, which no interpreter reads; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    ]


@pytest.mark.parametrize(("first", "mode"), [("#!/bin/bash", 0o644), ("#!/bin/sh", 0o644), ("echo", 0o755)])
def test_windows_line_ends_are_noted_where_bash_reads_the_script(place: Path, first: str, mode: int) -> None:
    (note,) = note_on_script(place, f"{first}\r\necho\r\n".encode(), mode=mode)
    assert note.startswith(
        "s.sh has Windows line ends, so bash reads a carriage return at the end of each line: sed -i"
    )


def test_a_script_that_a_command_runs_is_read_too(place: Path) -> None:
    (place / "w/run.sh").write_bytes(b"\xef\xbb\xbf#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=2\n")
    for command in ("./run.sh", "bash -x run.sh 1"):
        first, second = notes(place, f"{COMMAND}command={command}\n")
        assert first.startswith("run.sh begins with a byte order mark")
        assert second.startswith(
            "run.sh: CUDA_VISIBLE_DEVICES is set there, so the program does not use the GPUs that dlapp"
        )


# ---- GPUs ----


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("CUDA_VISIBLE_DEVICES=2,3 python3 train.py", "CUDA_VISIBLE_DEVICES"),
        ("set -e; export CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES"),
        ("if x; then env CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python3 a.py; fi", "CUDA_VISIBLE_DEVICES"),
        ("export NVIDIA_VISIBLE_DEVICES='1'", "NVIDIA_VISIBLE_DEVICES"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '2'", "CUDA_VISIBLE_DEVICES"),
        ('os.environ["CUDA_VISIBLE_DEVICES"]="0,1"', "CUDA_VISIBLE_DEVICES"),
        ("# CUDA_VISIBLE_DEVICES=2", ""),
        ("echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES python3 a.py", ""),
        ("CUDA_VISIBLE_DEVICES= python3 a.py", ""),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '-1'", ""),
        ('[ "$CUDA_VISIBLE_DEVICES" = 0 ]', ""),
    ],
)
def test_a_script_that_selects_gpus_itself_is_noted(place: Path, content: str, name: str) -> None:
    end = "so the program does not use the GPUs that dlapp leases for it; remove it, and request GPUs with gcores"
    expected = [f"s.sh: {name} is set there, {end}"] if name else []
    assert note_on_script(place, f"#!/bin/sh\n\n{content}\n".encode()) == expected
    assert notes(place, f"{MINIMAL}docker_image=i\n") == []  # a container sees only its GPUs


def test_one_script_of_many_roles_has_one_note(place: Path) -> None:
    (place / "w/s.sh").write_text("#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=1\n")
    (place / "w/t.sh").write_text("#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=2\n")
    roles = "".join(f"[role {name}]\n" for name in ("a", "b", "c")) + "script=t.sh\n"
    (note,) = notes(place, MINIMAL + roles)
    assert note.startswith("s.sh, t.sh: CUDA_VISIBLE_DEVICES")
    (note,) = notes(place, f"{COMMAND}command=env CUDA_VISIBLE_DEVICES=2 python3 train.py\n")
    assert note.startswith("the command: CUDA_VISIBLE_DEVICES")


def test_variables_of_the_submitter_that_select_gpus_are_noted(place: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "2,3", "NVIDIA_VISIBLE_DEVICES": "1", "NV_GPU": "0"}
    assert notes(place, MINIMAL, environ=environ) == [
        "CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES, NV_GPU: set here without effect; dlapp chooses "
        "the GPUs that it leases, and gcores is their number"
    ]
    assert notes(place, MINIMAL, environ={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"}) == []
    of_dlapp = {"CUDA_VISIBLE_DEVICES": "GPU-1", "DLAPP_CONTAINER_ID": "container_1"}
    assert notes(place, MINIMAL, environ=of_dlapp) == []


# ---- Docker ----


def docker_notes(place: Path, environ: Mapping[str, str], socket: str = "none.sock") -> Sequence[str]:
    options = {"runtime.docker.host": f"unix://{place}/{socket}"}
    return notes(place, f"{MINIMAL}docker_image=i\n", environ={"HOME": str(place), **environ}, options=options)


def test_another_docker_of_the_submitter_is_named_where_the_socket_cannot_be_used(place: Path) -> None:
    uses = f"dlapp uses runtime.docker.host, unix://{place}/none.sock: "
    rootless = "unix:///run/user/1000/docker.sock"
    assert docker_notes(place, {"DOCKER_HOST": rootless}) == [
        f"DOCKER_HOST is set to {rootless}; {uses}export DLAPP_RUNTIME_DOCKER_HOST={rootless}"
    ]
    assert docker_notes(place, {"DOCKER_HOST": "ssh://h"}) == [
        f"DOCKER_HOST is set to ssh://h; {uses}only a daemon of this machine can be used (unix://...)"
    ]
    of_context = (
        f"docker uses its context rootless; {uses}export DLAPP_RUNTIME_DOCKER_HOST=... with the address that "
        "`docker context inspect` shows"
    )
    assert docker_notes(place, {"DOCKER_CONTEXT": "rootless"}) == [of_context]
    (place / ".docker").mkdir()
    (place / ".docker/config.json").write_text(json.dumps({"currentContext": "rootless"}))
    assert docker_notes(place, {}) == [of_context]
    assert docker_notes(place, {"DOCKER_CONTEXT": "default"}) == []
    os.rename(place / ".docker", place / "d")
    assert docker_notes(place, {"DOCKER_CONFIG": str(place / "d")}) == [of_context]
    (place / "d/config.json").write_text("[")
    assert docker_notes(place, {"DOCKER_CONFIG": str(place / "d")}) == []


def test_another_docker_host_is_not_noted_where_dlapp_needs_none(place: Path) -> None:
    (place / "there.sock").touch()
    other = {"DOCKER_HOST": "unix:///run/user/1000/docker.sock"}
    assert docker_notes(place, other, "there.sock") == []
    assert docker_notes(place, {"DOCKER_HOST": f"unix://{place}/none.sock"}) == []
    assert notes(place, MINIMAL, environ=other) == []
