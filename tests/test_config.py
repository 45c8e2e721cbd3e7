"""The configuration: where values come from, which one wins, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.config import (
    KEYS,
    NOT_KEYS,
    NOT_KEYS_PREFIXES,
    Config,
    DefaultsConfig,
    DockerConfig,
    HistoryConfig,
    LocalConfig,
    RuntimeConfig,
    StorageConfig,
    config_of_texts,
    load_config,
    obeyed_paths,
    variable_of,
)
from dlapp.errors import ConfigError
from dlapp.system.yaml_keys import MAX_PROBLEMS
from dlapp.value import replace
from tests.services.missing import missing

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a configuration as a user whose home, and whose machine's /etc, is under tmp_path."""

    def loaded(options: dict[str, str] | None = None, **environ: str) -> Config:
        return load_config(options, {"HOME": str(tmp_path), **environ}, system_file=str(tmp_path / "etc.yaml"))

    return loaded


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / ".config/dlapp/config.yaml"
    path.parent.mkdir(parents=True)
    return path


def refused(load: Load, options: dict[str, str] | None = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        load(options, **environ)
    return str(refusal.value).split("\n")


def test_without_any_file_the_documented_defaults_hold(load: Load, tmp_path: Path) -> None:
    config = load()
    assert (config.cluster, config.defaults) == ("local", DefaultsConfig(1, 1, 4096, None, None))
    assert config.local == LocalConfig(str(tmp_path / ".local/state/dlapp"), False, "/", None, None, None, 2)
    assert config.gpuid.lock_dir == "/run/lock/dlapp"
    assert config.runtime == RuntimeConfig(
        1 << 30, 3600.0, DockerConfig("unix:///var/run/docker.sock", "bridge", "auto")
    )
    assert config.storage == StorageConfig("auto", 10 << 30, 20 << 30, 30 * 86400.0, 50 << 30, (), ())
    assert config.history == HistoryConfig(90 * 86400.0, 10 << 30)
    assert set(config.origins.values()) == {"default"}


def test_later_sources_override_and_each_value_has_its_source(load: Load, tmp_path: Path, user_file: Path) -> None:
    (tmp_path / "etc.yaml").write_text(
        "defaults:\n  memory: 1g\n  vcores: 2\nlocal:\n  vcores: 3\n  fs_root: /etc1\nhistory: {age: 1d}\n"
    )
    user_file.write_text("defaults:\n  vcores: 4\nlocal: {vcores: 5, fs_root: ~/data}\nhistory: {age: 2d}\n")
    named = tmp_path / "named.yaml"
    named.write_text("local:\n  vcores: 6\nhistory: {age: 3d}\n")
    config = load({"history.age": "5d"}, DLAPP_CONFIG=str(named), DLAPP_HISTORY_AGE="4d", DLAPP_LOCAL_VCORES="7")
    assert config.defaults == DefaultsConfig(containers=1, vcores=4, memory_mib=1024)
    assert (config.local.vcores, config.local.fs_root) == (7, str(tmp_path / "data"))
    assert config.history.age_s == 5 * 86400
    origins = {key: config.origins[key] for key in ("defaults.memory", "defaults.vcores", "local.vcores")}
    assert origins == {
        "defaults.memory": f"{tmp_path}/etc.yaml:2",
        "defaults.vcores": f"{user_file}:2",
        "local.vcores": "DLAPP_LOCAL_VCORES",
    }
    assert (config.origins["history.age"], config.origins["cluster"]) == ("option", "default")


def test_the_texts_of_a_configuration_make_it_again_anywhere(load: Load, tmp_path: Path) -> None:
    config = load({"local.shared": "true", "defaults.gcores": "2"}, DLAPP_LOCAL_MEMORY="8g")
    again = load_config(config.texts, {"HOME": "/elsewhere"}, system_file=str(tmp_path / "none"))
    assert replace(again, origins=config.origins) == config


def test_variables_that_are_no_keys_are_passed_over(load: Load) -> None:
    names = {*NOT_KEYS, "DLAPP_INPUT_TRAIN", "DLAPP_SHELL_SOCKET"} - {"DLAPP_CONFIG"}
    assert load(None, **dict.fromkeys(names, "anything"), DLAPP_CONFIG="", DLAPP_LOCAL_VCORES="") == load()


def test_no_key_has_the_variable_of_a_payload() -> None:
    variables = set(map(variable_of, KEYS))
    assert len(variables) == len(KEYS)
    assert not variables & NOT_KEYS
    assert not [name for name in variables if name.startswith(NOT_KEYS_PREFIXES)]


def test_every_default_can_be_read(load: Load) -> None:
    config = load()
    assert config.texts.keys() == {name for name, key in KEYS.items() if key.default_text}
    assert config.origins.keys() == KEYS.keys()


BAD_FILES = [
    ("locl:\n  vcores: 1\n", ":1: locl: is not known, the nearest is local"),
    ("local:\n  vcors: 1\n", ":2: local.vcors: is not known, the nearest is local.vcores"),
    ("local:\n  vcores: 1\n  vcores: 2\n", ":3: local.vcores: appears twice, first in line 2"),
    ("local:\n  vcores: 0\n", ":2: local.vcores: is 0, the minimum is 1"),
    ("local:\n  vcores: many\n", ":2: local.vcores: 'many' is not a whole number"),
    ("local:\n  vcores:\n", ":2: local.vcores: is empty"),
    ("local:\n  vcores: [1]\n", ":2: local.vcores: must be a single value"),
    ("local: 3\n", ":1: local: must be a level with keys under it"),
    ("local:\n  shared: maybe\n", ":2: local.shared: is 'maybe', allowed are true, false"),
    ("local:\n  state_dir: here\n", ":2: local.state_dir: 'here' is not an absolute path (or one under ~/)"),
    ("local:\n  ? [vcores, shared]\n  : 1\n", ":2: local.?: is not known, "),
    ("? {vcores: 1}\n: 1\n", ":1: ?: is not known, "),
    ("cluster: mesos\n", ":1: cluster: is 'mesos', allowed are local, yarn"),
    ("runtime: {docker: {host: here}}\n", ":1: runtime.docker.host: 'here' is not an address of Docker: "),
    (
        "runtime: {log_limit: 1000}\n",
        ":1: runtime.log_limit: '1000' is not a size: a number with b, k, m, g or t",
    ),
    ("- 1\n", ":1: the file: must be a level with keys under it"),
    ("a: [\n", ":2: is not YAML: "),
    ("a: 1\n--- \nb: 1\n", ":2: is not YAML: "),
    ("a: \0\n", ": is not YAML: "),
    ("[" * 5000, ":1: is not YAML: nested more than 32 levels deep"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_FILES)
def test_a_wrong_file_is_refused_with_its_line(load: Load, user_file: Path, text: str, expected: str) -> None:
    user_file.write_text(text)
    (line,) = refused(load)
    assert line.startswith(f"{user_file}{expected}")


def test_errors_of_all_sources_are_reported_together(load: Load, user_file: Path) -> None:
    user_file.write_text("histori: 1\nlocal: {memory: 1x}\n")
    lines = refused(load, {"local.core": "1"}, DLAPP_LOCAL_STATEDIR="/x", DLAPP_LOCAL_SHARED="maybe")
    text = "\n".join(lines)
    assert "variable DLAPP_LOCAL_STATEDIR: is not known, the nearest is DLAPP_LOCAL_STATE_DIR" in text
    assert "option local.core: is not known, the nearest is local.vcores" in text
    assert "DLAPP_LOCAL_SHARED: local.shared: is 'maybe', allowed are true, false" in text
    assert f"{user_file}:1: histori: is not known, the nearest is history" in text
    assert f"{user_file}:2: local.memory: '1x' is not an amount of memory" in text
    assert len(lines) == 5


def test_a_misspelled_dlapp_variable_is_refused_and_others_are_noted(load: Load) -> None:
    for name, meant in (
        ("STATE_DIR", "LOCAL_STATE_DIR"),
        ("LOCAL_VCORE", "LOCAL_VCORES"),
        ("local_vcores", "LOCAL_VCORES"),
        ("YARN_CONFDIR", "YARN_CONF_DIR"),
    ):
        assert refused(load, None, **{f"DLAPP_{name}": "x"}) == [
            f"variable DLAPP_{name}: is not known, the nearest is DLAPP_{meant}"
        ]
    config = load(DLAPP_FOO="1", DLAPP_ROOT="/x", DLAPP_VCORES="2")
    assert config.ignored == (
        "the variable DLAPP_FOO is not known and has no effect",
        "the variable DLAPP_ROOT is not known and has no effect",
        "the variable DLAPP_VCORES is not known and has no effect; the nearest is DLAPP_LOCAL_VCORES",
    )
    assert replace(config, ignored=()) == load()


def test_only_the_first_of_many_errors_of_a_file_are_reported(load: Load, user_file: Path) -> None:
    user_file.write_text("x:\n" * 10_000)
    message = refused(load)
    assert len(message) == MAX_PROBLEMS + 1
    assert message[-1] == f"{user_file}:{MAX_PROBLEMS + 1}: the rest is not checked"


def test_a_section_with_only_comments_has_no_effect(load: Load, user_file: Path) -> None:
    user_file.write_text("local:\n  # vcores: 3\n")
    assert load() == load(DLAPP_CONFIG="")


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(load: Load, user_file: Path) -> None:
    user_file.write_bytes("cluster: local\n# für\n".encode("latin-1"))
    assert refused(load) == [f"{user_file}:2: is not UTF-8"]


def test_a_file_of_megabytes_is_refused_unread(load: Load, user_file: Path) -> None:
    user_file.write_bytes(b"x" * (2 << 20))
    assert refused(load) == [f"{user_file}: is larger than 32 KiB"]


def test_the_file_that_dlapp_config_names_must_be_there(load: Load, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.yaml")
    assert refused(load, DLAPP_CONFIG=missing) == [f"{missing}: No such file or directory (DLAPP_CONFIG names it)"]


def test_a_directory_in_place_of_the_file_is_refused(load: Load, user_file: Path) -> None:
    user_file.mkdir()
    assert refused(load) == [f"{user_file}: Is a directory"]


def test_yaml_is_not_imported_where_there_is_no_file(tmp_path: Path) -> None:
    program = (
        "import sys; from dlapp.config import load_config; "
        f"load_config(environ={{'HOME': {str(tmp_path)!r}}}, system_file={missing()!r}); "
        "print([name for name in ('yaml', 'difflib', 'logging', 'pathlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_schemes_that_the_nodes_read_are_compared_in_lower_case(load: Load) -> None:
    assert load({"storage.node_schemes": "S3, gs://,Abfss://"}).storage.node_schemes == ("s3", "gs", "abfss")


def test_programs_and_temperatures_of_devices_are_read() -> None:
    options = {"gpuid.allowed_processes": "Xorg, my-monitor", "gpuid.temperature_limit": "85"}
    gpuid = load_config(options, {"HOME": "/nowhere"}, system_file="/nowhere").gpuid
    assert (gpuid.allowed_processes, gpuid.temperature_limit_c) == (("Xorg", "my-monitor"), 85)
    default = load_config({}, {"HOME": "/nowhere"}, system_file="/nowhere").gpuid
    assert "nvidia-cuda-mps-server" in default.allowed_processes
    assert default.temperature_limit_c is None
    with pytest.raises(ConfigError, match="is a path"):
        load_config({"gpuid.allowed_processes": "/usr/bin/x"}, {"HOME": "/nowhere"}, system_file="/nowhere")


def test_every_path_of_the_configuration_is_obeyed_but_those_of_data() -> None:
    """A new key that names a path is obeyed, unless the configuration says that it names data."""
    texts = {name: "/x/y" for name, one in KEYS.items() if re.search("file|director", one.kind)}
    texts |= {"notify.command": "/x/python3 /x/notify.py --to a"}
    found = obeyed_paths(config_of_texts({**config_of_texts({}).texts, **texts}))
    data = {"local.fs_root", "storage.shared_paths", "gpuid.lock_dir", "local.state_dir"}
    assert set(found) == set(texts) - data
    assert found["notify.command"] == ["/x/python3", "/x/notify.py"]
    assert found["notify.webhook"] == ["/x/y"]


def test_a_word_in_the_place_of_a_path_names_no_path() -> None:
    texts = {**config_of_texts({}).texts, "gpuid.zookeeper.credentials": "none", "gpuid.zookeeper.ca": "system"}
    assert obeyed_paths(config_of_texts(texts)) == {}


@pytest.mark.parametrize(
    "text", ["{63: ignore, 94: reset}", "\n    63: ignore\n    94: reset", "63: ignore, 94: reset"]
)
def test_classes_of_xid_errors_are_a_mapping_in_a_file_or_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    quoted = f'"{text}"' if text.startswith("6") else text
    file.write_text(f"gpuid:\n  xids: {quoted}\n")
    found = load_config({}, {"HOME": "/nowhere", "DLAPP_CONFIG": str(file)}, system_file="/nowhere")
    assert found.gpuid.xids == {63: "ignore", 94: "reset"}
    again = config_of_texts(found.texts)
    assert again.gpuid.xids == found.gpuid.xids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("63: ignored", "'ignored' is not a class of Xid 63, the nearest is ignore"),
        ("63: probe", "'probe' is not a class of Xid 63, the nearest is program-probe"),
        ("63", "'63' is not a code and its class, such as 63: ignore"),
        ("x: ignore", "'x: ignore' is not a code and its class"),
        ("0: ignore", "'0: ignore' is not a code and its class"),
        ("63: ignore, 63: reset", "Xid 63 appears twice"),
    ],
)
def test_a_wrong_class_of_an_xid_error_is_refused_with_the_nearest_right_one(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"gpuid.xids: {message}")):
        load_config({"gpuid.xids": text}, {"HOME": "/nowhere"}, system_file="/nowhere")


def test_no_other_key_has_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("gpuid:\n  lock_dir: {a: b}\n  xids: {63: {a: b}}\n")
    with pytest.raises(ConfigError) as error:
        load_config({}, {"HOME": "/nowhere", "DLAPP_CONFIG": str(file)}, system_file="/nowhere")
    assert str(error.value).splitlines() == [
        f"{file}:2: gpuid.lock_dir: must be a single value",
        f"{file}:3: gpuid.xids: must be a single value",
    ]
