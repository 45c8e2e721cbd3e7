"""Test the way from a properties file to a spec: defaults, paths, variables, all that the file system can refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.application.build import os_user
from dlapp.application.description import (
    ResolvedApplication,
    UnresolvedSpec,
    read_application,
)
from dlapp.application.paths import overlap, resolve_location
from dlapp.application.variables import read_env_file
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config, load_config
from dlapp.errors import FileRefused, UsageError
from dlapp.locations import HdfsPlace, HdfsService, MountTable
from dlapp.login import Login
from dlapp.storage.open import open_location
from dlapp.value import replace
from dlapp.values.idle_guard import IdleAction, IdleGuard
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import (
    AppSpec,
    ContainerFailure,
    Dependency,
    Framework,
    Gang,
    InputSpec,
    OnFailure,
    OutputSpec,
    PayloadCache,
    PayloadProgram,
    Placement,
    Resources,
    RoleFailure,
    RoleSpec,
    Until,
)
from tests.services.missing import missing

NO_HDFS = (
    "no cluster is configured: set yarn.conf_dir, or HADOOP_CONF_DIR, to the directory with its core-site.xml "
    "and yarn-site.xml"
)
NO_GPUS = EngineInfo(name="local", version="1", has_gpus=False, no_hdfs=NO_HDFS)
HDFS = HdfsPlace("hdfs://nn:8020", ("http://nn:9870",), Login("tony"))
BESIDE_HDFS = EngineInfo(name="local", version="1", has_gpus=False, hdfs=HDFS)
ON_HDFS = EngineInfo(name="yarn", version="3", has_gpus=False, hdfs=HDFS, paths_on_hdfs=True)
GPUS = EngineInfo(name="local", version="1", has_gpus=True)
OWN_PATH = "write the path itself (~ is the home directory)"
MINIMAL = "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\n"


def read(place: Path, text: str, config: Config, engine: EngineInfo = NO_GPUS) -> ResolvedApplication:
    (place / "app.properties").write_text(text)
    return read_application(str(place / "app.properties"), config, engine)


def refused(place: Path, text: str, config: Config) -> list[str]:
    with pytest.raises(FileRefused) as refusal:
        read(place, text, config)
    return [fault.removeprefix(f"{place}/app.properties:") for fault in refusal.value.problems]


def test_the_least_file_gets_the_documented_defaults(place: Path, config: Config) -> None:
    spec = read(place, MINIMAL, config).spec
    assert (spec.username, spec.appname, spec.script, spec.workspace) == (os_user(), "a", "s.sh", f"{place}/w")
    assert (spec.args, spec.exclude, spec.docker_image, spec.queue, spec.kill_grace_s) == ((), (), None, None, 30.0)
    (role,) = spec.roles
    assert (role.name, role.instances, role.resources) == ("worker", 1, Resources(memory_mib=4096, vcores=1, gcores=0))


def test_gcores_auto_is_one_where_the_engine_has_gpus(place: Path, config: Config) -> None:
    def gcores(text: str, engine: EngineInfo, config: Config = config) -> int:
        return read(place, MINIMAL + text, config, engine).spec.roles[0].resources.gcores

    assert [gcores("", engine) for engine in (NO_GPUS, GPUS)] == [0, 1]
    assert [gcores("[resources]\ngcores=auto\n", engine) for engine in (NO_GPUS, GPUS)] == [0, 1]
    assert [gcores("[resources]\ngcores=3\n", engine) for engine in (NO_GPUS, GPUS)] == [3, 3]
    two = load_config({"defaults.gcores": "2"}, {"HOME": "/x"}, system_file=missing())
    assert gcores("", NO_GPUS, two) == 2
    assert gcores("[resources]\ngcores=auto\n", NO_GPUS, two) == 0


def test_resources_take_the_configured_defaults_key_by_key(place: Path) -> None:
    texts = {"defaults.containers": "3", "defaults.memory": "1g", "defaults.vcores": "2"}
    config = load_config(texts, {"HOME": "/x"}, system_file=missing())
    (role,) = read(place, MINIMAL + "[resources]\nvcores=4\n", config).spec.roles
    assert (role.instances, role.resources) == (3, Resources(memory_mib=1024, vcores=4, gcores=0))


def test_every_key_reaches_the_spec(place: Path, config: Config) -> None:
    (place / "secret.env").write_text("TOKEN='a b'\n# no\n\nEMPTY=\nURL=a=b#c\n")
    (place / "secret.env").chmod(0o600)
    (place / "in").mkdir()
    image = f"reg:5000/a/b@sha256:{'0f' * 32}"
    text = (
        "[application]\nusername=tony\nappname='my app'\nuser_dev_workspace_path=./w/\nuser_shell_script=./s.sh\n"
        f"user_shell_args=-n 'a b'\ndocker_image={image}\nuser_dev_workspace_exclude_list=*.o,.git\n"
        "cache.models=/models\ncache.pip-packages=/root/.cache/pip\n"
        "queue=gpu\npriority=3\nproject=p q\ntags=x,y\nmax_runtime=2h\nkill_grace=1m\nenv.A=' b '\n"
        "env_file=secret.env\non_container_failure=continue\noutput_patience=2d\nservice_patience=5m\n"
        "[resources]\ncontainers=2\nmemory=512m\nvcores=2\ngcores=1\nnodes=n1\nexclude_nodes=n2 n3\nretries=2\n"
        "node_label=fast\nplacement=spread\n"
        "[from_hdfs]\nhdfs=in/*\n  /data/{a,b}\ninput_path=./data\n[from_hdfs more]\nhdfs=file:/x//y\ninput_path=.\n"
        "[to_hdfs]\noutput_path=out/\nhdfs=/results\noverwrite=true\nkeep_previous=3\n"
        "[to_hdfs logs]\noutput_path=logs\nhdfs=../logs\non_failure=drop\n"
    )
    application = read(place, text, config)
    spec = application.spec
    assert (spec.username, spec.appname, spec.workspace, spec.script) == ("tony", "'my app'", f"{place}/w", "s.sh")
    assert (spec.args, spec.docker_image, spec.exclude) == (("-n", "a b"), image, ("*.o", ".git"))
    assert (spec.queue, spec.priority, spec.project, spec.tags) == ("gpu", 3, "p q", ("x", "y"))
    assert (spec.max_runtime_s, spec.kill_grace_s) == (7200.0, 60.0)
    assert (spec.on_container_failure, spec.output_patience_s) == (ContainerFailure.CONTINUE, 172_800.0)
    assert spec.service_patience_s == 300.0
    assert [role.retries for role in spec.roles] == [2]
    assert spec.placement == Placement(nodes=("n1",), exclude_nodes=("n2", "n3"), node_label="fast", spread=True)
    assert spec.inputs == (
        InputSpec(sources=(f"file://{place}/in/*", "file:///data/{a,b}"), input_path="data"),
        InputSpec(name="more", sources=("file:///x/y",), input_path="."),
    )
    assert spec.outputs == (
        OutputSpec(output_path="out", target="file:///results", overwrite=True, keep_previous=3),
        OutputSpec(name="logs", output_path="logs", target=f"file://{place.parent}/logs", on_failure=OnFailure.DROP),
    )
    assert spec.caches == (PayloadCache("models", "/models"), PayloadCache("pip-packages", "/root/.cache/pip"))
    assert spec.env == ("A", "TOKEN", "EMPTY", "URL")
    assert application.env == {"A": " b ", "TOKEN": "'a b'", "EMPTY": "", "URL": "a=b#c"}


def test_a_comment_is_kept_with_the_application(place: Path, config: Config) -> None:
    spec = read(place, f"{MINIMAL}comment=with the new loader\n", config).spec
    assert spec.comment == "with the new loader"
    assert from_json(AppSpec, to_json(spec)).comment == spec.comment
    assert read(place, MINIMAL, config).spec.comment is None
    assert refused(place, f"{MINIMAL}comment=\n", config) == ["5: application.comment: is empty"]


def test_caches_that_cannot_be_are_refused_with_their_line(place: Path, config: Config) -> None:
    absent = "a cache cannot be mounted "
    plain = "write it without a slash at its end, //, . and .., and control characters"
    for key, path, message in (
        ("models", "models", "'models' is not an absolute path"),
        ("models", "/models/", f"'/models/': {plain}"),
        ("models", "/a/../etc", f"'/a/../etc': {plain}"),
        ("models", "/", f"/: {absent}there"),
        ("models", "/usr", f"/usr: {absent}there"),
        ("models", "/workspace/models", f"/workspace/models: {absent}in /workspace"),
        ("models", "/etc/passwd", f"/etc/passwd: {absent}in /etc"),
        ("a/b", "/a", "'a/b' is not a name: at most 32 of A-Z, a-z, 0-9, _ and -, no _ or - first"),
        ("", "/a", "'' is not a name: at most 32 of A-Z, a-z, 0-9, _ and -, no _ or - first"),
    ):
        assert refused(place, f"{MINIMAL}cache.{key}={path}\n", config) == [f"5: application.cache.{key}: {message}"]
    assert refused(place, f"{MINIMAL}cache.a=/a\ncache.b=/a/b\n", config) == [
        "6: application.cache.b: /a/b is in that of cache.a"
    ]
    assert refused(place, f"{MINIMAL}cache.a-b=/a\ncache.A_B=/b\n", config) == [
        "6: application.cache.A_B: DLAPP_CACHE_A_B is the variable of cache.a-b already"
    ]
    none = replace(config, storage=replace(config.storage, payload_cache_limit_bytes=0))
    message = "5: application.cache.a: is not possible here: storage.payload_cache_limit is 0"
    assert refused(place, f"{MINIMAL}cache.a=/a\n", none) == [message]


def test_previous_outputs_cannot_be_kept_without_replacement(place: Path, config: Config) -> None:
    text = MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=/o\nkeep_previous=2\n"
    assert refused(place, text, config) == ["8: to_hdfs.keep_previous: has no effect without overwrite=true"]


# ---- paths ----


def test_a_tilde_is_the_home_directory(place: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place / "a [home]"
    (home / "w").mkdir(parents=True)
    (home / "w/s.sh").write_text("#!/bin/sh\n")
    (home / "e").write_text("A=1\n")
    (home / "e").chmod(0o600)
    (home / "in").mkdir()
    monkeypatch.setenv("HOME", str(home))
    text = MINIMAL.replace("=w\n", "=~/w\n") + (
        "env_file=~/e\n[from_hdfs]\nhdfs=~/in/*\n  a/~\ninput_path=in\n[to_hdfs]\noutput_path=o\nhdfs=~/out\n"
    )
    rooted = load_config({"local.fs_root": "/elsewhere"}, {"HOME": "/x"}, system_file=missing())
    for application in (read(place, text, config), read(place, text, rooted)):
        spec = application.spec
        assert (spec.workspace, application.env) == (f"{home}/w", {"A": "1"})
        escaped = str(home).replace("[", r"\[").replace("]", r"\]")
        assert spec.inputs[0].sources == (f"file://{escaped}/in/*", f"file://{place}/a/~")
        assert spec.outputs[0].target == f"file://{home}/out"


def test_a_tilde_on_a_cluster_is_the_home_directory_on_hdfs(place: Path, config: Config) -> None:
    text = MINIMAL + "username=tony\n[from_hdfs]\nhdfs=~/in/*\ninput_path=in\n[to_hdfs]\noutput_path=o\nhdfs=~/out\n"
    spec = read(place, text, config, ON_HDFS).spec
    assert spec.inputs[0].sources == ("hdfs://nn:8020/user/tony/in/*",)
    assert spec.outputs[0].target == "hdfs://nn:8020/user/tony/out"
    with pytest.raises(FileRefused, match="on HDFS only ~/ is known"):
        read(place, text.replace("~/in", "~bob/in"), config, ON_HDFS)


def test_a_variable_in_the_location_of_another_server_is_part_of_it(place: Path, config: Config) -> None:
    source = "https://host/data?$filter=a"
    spec = read(place, MINIMAL + f"[from_hdfs]\nhdfs={source}\ninput_path=in\n", config).spec
    assert spec.inputs[0].sources == (source,)


def test_input_may_be_the_replaced_output(place: Path, config: Config) -> None:
    for engine in (BESIDE_HDFS, ON_HDFS):
        for source in ("out/*", "out", "out/", "./out/*", "out/model.pt", "out/{a,b}/*.pt"):
            text = MINIMAL + f"[from_hdfs]\nhdfs={source}\ninput_path=in\noptional=true\n"
            text += "[to_hdfs]\noutput_path=o\nhdfs=out\noverwrite=true\n"
            spec = read(place, text, config, engine).spec
            assert (spec.inputs[0].optional, spec.outputs[0].overwrite) == (True, True)


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/a/b", "/root/a/b"),
        ("//a//b/", "/root/a/b"),
        ("/../../etc", "/root/etc"),
        ("/a/*", "/root/a/*"),
        ("a/b", "/here/a/b"),
        ("../a", "/a"),
        ("./50% off #1", "/here/50% off #1"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("FILE:///a", "/a"),
        ("a:b", "/here/a:b"),
        ("한글/데이터", "/here/한글/데이터"),
    ],
)
def test_a_path_is_taken_from_fs_root_or_from_beside_the_file(text: str, location: str) -> None:
    for pattern in (True, False):
        assert resolve_location(text, "/here", "/root", pattern=pattern) == f"file://{location}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("webhdfs://nn:9870/a", "there is no storage for webhdfs://, it can be a path, file:// or hdfs://"),
        ("har:/a", "there is no storage for har://, it can be a path, file:// or hdfs://"),
        ("s3:/bucket/a", "'s3:/bucket/a' is not a location, such as s3://bucket/name"),
        ("file://host/a", "'file://host/a' names a host; write file:/// and the path"),
        ("/a/{b,../../c}", "has both .. and braces"),
    ],
)
def test_a_path_of_an_unknown_scheme_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        resolve_location(text, "/here", "/root", pattern=True)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "beside", "on"),
    [
        ("/a/b", "file:///a/b", "hdfs://nn:8020/a/b"),
        ("a b/c", "file://{place}/a b/c", "hdfs://nn:8020/user/tony/a b/c"),
        ("hdfs://nn:8020/a", "hdfs://nn:8020/a", "hdfs://nn:8020/a"),
        ("HDFS://nn/a", "hdfs://nn:8020/a", "hdfs://nn:8020/a"),
        ("hdfs:///a", "hdfs://nn:8020/a", "hdfs://nn:8020/a"),
        ("hdfs:/a", "hdfs://nn:8020/a", "hdfs://nn:8020/a"),
    ],
)
def test_paths_without_a_scheme_belong_to_the_engine(
    place: Path, config: Config, text: str, beside: str, on: str
) -> None:
    both = (
        MINIMAL + f"username=tony\n[from_hdfs]\nhdfs={text}\ninput_path=in\n[to_hdfs]\noutput_path=o\nhdfs={text}-o\n"
    )
    for engine, location in ((BESIDE_HDFS, beside), (ON_HDFS, on)):
        spec = read(place, both, config, engine).spec
        assert spec.inputs[0].sources == (location.format(place=place),)
        assert spec.outputs[0].target == location.format(place=place) + "-o"


def test_hdfs_and_local_paths_do_not_overlap(place: Path, config: Config) -> None:
    text = MINIMAL + f"[from_hdfs]\nhdfs={{}}\ninput_path=in\n[to_hdfs]\noutput_path=o\nhdfs=hdfs:{place}/w\n"
    for source, overlaps in ((f"{place}/w/*", False), (f"hdfs://nn:8020{place}/w/*", True)):
        if not overlaps:
            assert read(place, text.format(source), config, BESIDE_HDFS).hdfs is not None
            continue
        with pytest.raises(FileRefused, match="would overwrite the application's own input of line 6"):
            read(place, text.format(source), config, BESIDE_HDFS)


def test_only_the_configured_hdfs_is_available(place: Path, config: Config) -> None:
    text = MINIMAL + "[from_hdfs]\nhdfs=hdfs://other:8020/a\ninput_path=in\n"
    with pytest.raises(FileRefused, match=r"6: from_hdfs\.hdfs: hdfs://other:8020/a: the HDFS that is configured is "):
        read(place, text, config, BESIDE_HDFS)


def test_locations_on_other_nameservices_and_in_mount_tables_are_those_of_the_nameservices(
    place: Path, config: Config
) -> None:
    mounts = MountTable("all", {"/data": "hdfs://west/data", "/": "hdfs://nn/rest"}, {})
    hdfs = HDFS._replace(others=(HdfsService("hdfs://west", ("http://w:9870",), ("w:8020",)),), mounts=(mounts,))
    text = (
        "[application]\nappname=a\nuser_dev_workspace_path=w\nuser_shell_script=s.sh\nusername=tony\n"
        "[from_hdfs]\nhdfs={}\ninput_path=in\n[to_hdfs]\noutput_path=o\nhdfs={}\n"
    )
    for engine in (BESIDE_HDFS, ON_HDFS):
        both = engine.__class__(
            name=engine.name, version="1", has_gpus=False, hdfs=hdfs, paths_on_hdfs=engine is ON_HDFS
        )
        found = read(place, text.format("viewfs://all/data/*", "hdfs://w:8020/o"), config, both).spec
        assert (found.inputs[0].sources, found.outputs[0].target) == (("hdfs://west/data/*",), "hdfs://west/o")
        # The same path of two nameservices is not one place; that of one is, by whatever name.
        read(place, text.format("hdfs://west/d/a", "hdfs://nn/d"), config, both)
        with pytest.raises(FileRefused, match="would overwrite the application's own input of line 7"):
            read(place, text.format("viewfs://all/data/x", "hdfs://w/data"), config, both)
        with pytest.raises(
            FileRefused, match=r"11: to_hdfs\.hdfs: viewfs://all/ has mount points in it, such as /data"
        ):
            read(place, text.format("hdfs://west/d", "viewfs://all/"), config, both)


def test_only_the_users_own_text_is_a_pattern(tmp_path: Path) -> None:
    odd = tmp_path / "a[b]*{c}\\d?"
    odd.mkdir()
    (odd / "x").write_text("")
    location = resolve_location("*", str(odd), "/", pattern=True)
    assert [entry.location for entry in open_location(location).matches(location)] == [f"file://{odd}/x"]
    assert resolve_location("t", str(odd), "/", pattern=False) == f"file://{odd}/t"


@pytest.mark.parametrize(
    ("target", "pattern", "expected"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/c", "/a/b", True),
        ("/a", "/a/b", True),
        ("/", "/a/b", True),
        ("/a/b", "/a/bc", False),
        ("/a/b", "/a/*", True),
        ("/a", "/a/*", True),
        ("/b", "/a/*", False),
        ("/a/out/x", "/a/*", True),
        ("/a/out", "/a/in*", False),
        ("/a/out", "/a/in/../*", True),
        ("/a/out", "/{a,b}/{in,out}", True),
        ("/a/out", "/{a/out,b/in}/x", True),
        ("/a/[x]", "/a/\\[x\\]", True),
    ],
)
def test_a_target_overlaps_the_matches_of_a_pattern_and_their_parents(
    target: str, pattern: str, expected: bool
) -> None:
    assert overlap(target, pattern) is expected


def test_links_do_not_hide_that_output_overlaps_input(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert overlap(f"{tmp_path}/real/out", f"{tmp_path}/link/*")
    assert overlap(f"{tmp_path}/link/out", f"{tmp_path}/real/*")
    assert not overlap(f"{tmp_path}/link2/out", f"{tmp_path}/real/*")


@given(st.text("ab/*{},\\[]^!-?.", max_size=12))
def test_any_source_is_resolved_or_refused_and_never_leaves_fs_root(text: str) -> None:
    try:
        location = resolve_location(f"/{text}", "/here", "/root/fs", pattern=True)
    except ValueError:
        return
    assert location.startswith("file:///root/fs")


# ---- refusals ----

FAULTS: list[tuple[str, list[str]]] = [
    (
        MINIMAL.replace("=w", "=nowhere"),
        ["3: application.user_dev_workspace_path: {place}/nowhere: there is no such directory"],
    ),
    (MINIMAL.replace("=w", "=file"), ["3: application.user_dev_workspace_path: {place}/file: is not a directory"]),
    *[
        (
            MINIMAL.replace("s.sh", script),
            [f"4: application.user_shell_script: {{place}}/w/{script}: there is no such file{hint}"],
        )
        for script, hint in (
            ("other", ""),
            ("ss.sh", "; the nearest is 's.sh'"),
            ("s.sh -n 3", "; write user_shell_script=s.sh, and user_shell_args=-n 3"),
            ("python3 s.sh", "; write user_shell_script=s.sh, with a first line #!/usr/bin/env python3"),
            (
                "python3 s.sh --lr 1",
                "; write user_shell_script=s.sh, with a first line #!/usr/bin/env python3, and user_shell_args=--lr 1",
            ),
        )
    ],
    (MINIMAL.replace("s.sh", "sub"), ["4: application.user_shell_script: {place}/w/sub: is not a file"]),
    (MINIMAL.replace("s.sh", "../file"), ["4: application.user_shell_script: '../file' leads out of the workspace"]),
    (
        MINIMAL.replace("s.sh", "/bin/sh"),
        ["4: application.user_shell_script: '/bin/sh' is absolute; it is taken from the workspace's root"],
    ),
    (
        MINIMAL.replace("s.sh", "out.sh"),
        ["4: application.user_shell_script: 'out.sh' leads out of the workspace, to {place}/file"],
    ),
    (
        MINIMAL.replace("s.sh", "up/file"),
        ["4: application.user_shell_script: 'up/file' leads out of the workspace, to {place}/file"],
    ),
    (MINIMAL.replace("s.sh", "nowhere.sh"), ["4: application.user_shell_script: {place}/w/nowhere.sh: is not a file"]),
    (
        MINIMAL + "[from_hdfs]\nhdfs=in\ninput_path=../x\n",
        ["7: from_hdfs.input_path: '../x' leads out of the workspace"],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=in\ninput_path=/x\n",
        ["7: from_hdfs.input_path: '/x' is absolute; it is taken from the workspace's root"],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=hdfs://nn/x\ninput_path=x\n",
        [
            "6: from_hdfs.hdfs: hdfs://nn/x is on HDFS, and no cluster is configured: set yarn.conf_dir, or "
            "HADOOP_CONF_DIR, to the directory with its core-site.xml and yarn-site.xml"
        ],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=in/[a\ninput_path=x\n",
        ["6: from_hdfs.hdfs: the pattern '[a' has a '[' that does not close"],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=../x\nhdfs=o\n",
        ["6: to_hdfs.output_path: '../x' leads out of the workspace"],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=./\nhdfs=o\n",
        ["6: to_hdfs.output_path: './' is the workspace itself; name a directory in it that holds nothing but output"],
    ),
    (MINIMAL + "[to_hdfs]\noutput_path=s.sh\nhdfs=o\n", ["6: to_hdfs.output_path: {place}/w/s.sh: is not a directory"]),
    (MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=o*\n", ["7: to_hdfs.hdfs: 'o*' is a pattern; output goes to one place"]),
    (MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=w\n", ["7: to_hdfs.hdfs: {place}/w would overwrite the workspace"]),
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=.\n",
        [
            "7: to_hdfs.hdfs: {place} would overwrite the workspace",
            "7: to_hdfs.hdfs: {place} would overwrite the properties file",
        ],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=app.properties\n",
        ["7: to_hdfs.hdfs: {place}/app.properties would overwrite the properties file"],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=in/*\ninput_path=d\n[to_hdfs]\noutput_path=o\nhdfs=in/out\noverwrite=true\n",
        ["10: to_hdfs.hdfs: {place}/in/out would overwrite the application's own input of line 6"],
    ),
    *[
        (
            MINIMAL + f"[from_hdfs]\nhdfs={source}\ninput_path=d\n[to_hdfs]\noutput_path=o\nhdfs=in\n{overwrite}",
            ["10: to_hdfs.hdfs: {place}/in would overwrite the application's own input of line 6"],
        )
        for source, overwrite in (("in/*", ""), ("{in,x}/a", "overwrite=true\n"), ("i*", "overwrite=true\n"))
    ],
    *[
        (
            MINIMAL + f"[from_hdfs]\nhdfs={path}\ninput_path=d\n",
            [f"6: from_hdfs.hdfs: '{path}' has {name}, and variables are not replaced here; {OWN_PATH}"],
        )
        for path, name in (("$HOME/in", "$HOME"), ("in/${RUN}/*", "${RUN}"), ("file:///$x", "$x"), ("a$b", "$b"))
    ],
    (
        MINIMAL.replace("=w\n", "=$PWD/w\n") + "env_file=$E\n[to_hdfs]\noutput_path=$O\nhdfs=${D}\n",
        [
            f"{where}: '{path}' has {name}, and variables are not replaced here; {OWN_PATH}"
            for where, path, name in (
                ("3: application.user_dev_workspace_path", "$PWD/w", "$PWD"),
                ("5: application.env_file", "$E", "$E"),
                ("7: to_hdfs.output_path", "$O", "$O"),
                ("8: to_hdfs.hdfs", "${D}", "${D}"),
            )
        ],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=~nobody-here/x\ninput_path=d\n",
        ["6: from_hdfs.hdfs: '~nobody-here': there is no such user, or the user has no home directory"],
    ),
    *[
        (
            MINIMAL + f"[to_hdfs]\noutput_path={path}\nhdfs=o\n",
            [f"6: to_hdfs.output_path: '{path}' is a pattern; name the directory that holds the output"],
        )
        for path in ("*.pt", "out/ck?", "out[0-9]", "{a,b}")
    ],
    (
        MINIMAL + "[from_hdfs t]\nhdfs=x\n  in/a\ninput_path=d\n[to_hdfs]\noutput_path=o\nhdfs=in\n",
        ["11: to_hdfs.hdfs: {place}/in would overwrite the application's own input of line 6"],
    ),
    (
        MINIMAL + "[from_hdfs]\nhdfs=in\ninput_path=d\n[to_hdfs]\noutput_path=o\nhdfs=w/../link/x\n",
        ["10: to_hdfs.hdfs: {place}/link/x would overwrite the application's own input of line 6"],
    ),
    (
        MINIMAL + "[to_hdfs]\noutput_path=o\nhdfs=r\n[to_hdfs b]\noutput_path=p\nhdfs=r/b\n",
        ["10: to_hdfs b.hdfs: {place}/r/b and the target of line 7 lie in each other"],
    ),
    (
        MINIMAL + "kill_grace=2h\n",
        ["5: application.kill_grace: is 7200 s, the maximum allowed here is 3600 s (runtime.kill_grace_max)"],
    ),
    (MINIMAL + "env_file=none\n", ["5: application.env_file: {place}/none: No such file or directory"]),
    (MINIMAL + "env_file=w\n", ["5: application.env_file: {place}/w: Is a directory"]),
    (
        MINIMAL + "env_file=open.env\n",
        ["5: application.env_file: {place}/open.env: has mode 0640, others may use it (0040); chmod 600 it"],
    ),
    (MINIMAL + "env.A=1\nenv_file=good.env\n", ["5: application.env.A: is set in env_file too"]),
]


@pytest.mark.parametrize(("text", "faults"), FAULTS)
def test_file_system_errors_are_reported_with_the_line(
    place: Path, config: Config, text: str, faults: list[str]
) -> None:
    (place / "file").write_text("")
    (place / "in").mkdir()
    (place / "link").symlink_to("in")
    (place / "w/sub").mkdir()
    (place / "w/up").symlink_to("..")
    (place / "w/out.sh").symlink_to("../file")
    (place / "w/nowhere.sh").symlink_to("gone")
    (place / "good.env").write_text("A=1\n")
    (place / "good.env").chmod(0o600)
    (place / "open.env").write_text("A=1\n")
    (place / "open.env").chmod(0o640)
    assert refused(place, text, config) == [fault.replace("{place}", str(place)) for fault in faults]


def test_errors_of_text_and_environment_are_reported_together(place: Path, config: Config) -> None:
    text = MINIMAL.replace("s.sh", "t.sh") + "frobnicate=1\nenv_file=none\n[resources]\nmemory=x\n[to_hdfs]\nhdfs=w\n"
    assert [fault.partition(": ")[0] + " " + fault.split(": ")[1] for fault in refused(place, text, config)] == [
        "4 application.user_shell_script",
        "5 application.frobnicate",
        "6 application.env_file",
        "8 resources.memory",
        "9 to_hdfs.output_path",
    ]


def test_a_link_to_a_script_inside_the_workspace_is_fine(place: Path, config: Config) -> None:
    (place / "w/start.sh").symlink_to("s.sh")
    assert read(place, MINIMAL.replace("s.sh", "start.sh"), config).spec.script == "start.sh"


@pytest.mark.parametrize("written", ["link", "file:{place}/link", "second", "link/../second/"])
def test_output_replaces_the_target_of_a_link_and_keeps_the_link(place: Path, config: Config, written: str) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    (place / "second").symlink_to(place / "link")
    text = MINIMAL + f"[to_hdfs]\noutput_path=output\nhdfs={written.format(place=place)}\noverwrite=true\n"
    assert read(place, text, config).spec.outputs[0].target == f"file://{place}/real"


def test_output_follows_a_link_to_a_future_target(place: Path, config: Config) -> None:
    (place / "link").symlink_to("later")
    text = MINIMAL + "[to_hdfs]\noutput_path=output\nhdfs=link\n"
    assert read(place, text, config).spec.outputs[0].target == f"file://{place}/later"


def test_output_to_a_link_loop_or_dead_end_is_refused(place: Path, config: Config) -> None:
    (place / "link").symlink_to("link")
    with pytest.raises(FileRefused, match=r":7: to_hdfs\.hdfs: .*/link is a broken symbolic link"):
        read(place, MINIMAL + "[to_hdfs]\noutput_path=output\nhdfs=link\n", config)


def test_output_into_the_workspace_itself_is_fine(place: Path, config: Config) -> None:
    text = MINIMAL + "[to_hdfs]\noutput_path=output\nhdfs=w/output\noverwrite=true\n"
    assert read(place, text, config).spec.outputs[0].target == f"file://{place}/w/output"


@pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_in_a_line(place: Path, config: Config, name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_application(f"{place}/{name}", config, NO_GPUS)
    assert not isinstance(refusal.value, FileRefused)  # nothing in it is at fault
    assert str(refusal.value).startswith(f"{place}/{name}: ")


# ---- env_file ----


def test_an_env_file_is_read_without_expansion(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_bytes("\ufeffA=1\r\nB= x \r\n\n#C=3\n_D='q'\n한=1\n".replace("한=1\n", "K=한글\n").encode())
    path.chmod(0o600)
    assert read_env_file(str(path)) == {"A": "1", "B": " x ", "_D": "'q'", "K": "한글"}


def test_all_errors_of_an_env_file_are_reported_without_quoting_it(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_bytes(b"A=1\nsecret\nexport B=secret\nA=secret\nNV_GPU=secret\nC=secret\0\nD=secret\xff\n=secret\n")
    path.chmod(0o600)
    with pytest.raises(UsageError) as refusal:
        read_env_file(str(path))
    assert str(refusal.value).split("\n") == [
        f"{path}:2: is not NAME=value",
        f"{path}:3: is not NAME=value",
        f"{path}:4: A: appears twice",
        f"{path}:5: NV_GPU: is set by dlapp and cannot be set here",
        f"{path}:6: C: has a NUL in it",
        f"{path}:7: is not UTF-8",
        f"{path}:8: is not NAME=value",
    ]


def test_a_fifo_as_env_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "env", 0o600)
    with pytest.raises(UsageError, match="is not a file"):
        read_env_file(str(tmp_path / "env"))


def test_an_env_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "env"
    path.write_text("A=1\n")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="is another user's file"):
        read_env_file(str(path))


# ---- roles ----

ROLES = (
    MINIMAL + "user_shell_args=--all\ndocker_image=img\nenv.A=app\nenv.B=app\nsuccess=trainer\ngang=all\n"
    "[resources]\nmemory=1g\ngcores=1\nretries=2\nnodes=n1,n2\n"
    "[role trainer]\ninstances=2\nenv.A=own\non_failure=restart_gang\n"
    "[role board]\ncommand=tensorboard --logdir 'my logs'\nmemory=256m\ngcores=auto\nservice=true\ndocker_image=tb\n"
    "exclude_nodes=n9\ndepends_on=trainer\n"
    "[role eval]\nscript=./eval.sh\nargs=-x {index}\ndepends_on=trainer:done\nnode_label=cpu\nretries=0\nvcores=3\n"
)


def test_ports_of_a_role_are_those_of_its_host_also_in_docker(place: Path, config: Config) -> None:
    plain = read(place, MINIMAL + "[role a]\nports=2\n[role b]\n", config).spec
    assert [role.ports for role in plain.roles] == [2, 0]
    assert (plain.network, plain.has_roster) == (None, True)
    docker = read(place, MINIMAL + "[role a]\nports=2\n[role b]\ndocker_image=img\n", config).spec
    assert docker.network == "bridge", "the role with ports is not in Docker"
    docker = read(place, MINIMAL + "docker_image=img\ngang=none\n[role a]\nports=1\n[role b]\n", config).spec
    assert (docker.network, docker.has_roster) == ("host", True)
    other = MINIMAL + "docker_image=img\nnetwork=bridge\n[role a]\nports=1\n"
    line = MINIMAL.count("\n") + 2
    assert refused(place, other, config) == [
        f"{line}: application.network: is bridge; the ports of role a can be reached only with host"
    ]
    assert not read(place, MINIMAL, config).spec.has_roster


def test_every_role_has_its_own_keys_and_else_those_of_the_application(place: Path, config: Config) -> None:
    (place / "w/eval.sh").write_text("")
    application = read(place, ROLES, config)
    spec = application.spec
    trainer, board, evaluation = spec.roles
    assert trainer == RoleSpec(
        name="trainer",
        instances=2,
        resources=Resources(memory_mib=1024, vcores=1, gcores=1),
        env=("A",),
        retries=2,
        on_failure=RoleFailure.RESTART_GANG,
    )
    assert spec.program_of(trainer) == PayloadProgram("s.sh", (), ("--all",))
    assert board.resources == Resources(memory_mib=256, vcores=1, gcores=0)
    assert spec.program_of(board) == PayloadProgram("", ("tensorboard", "--logdir", "my logs"), ())
    assert (board.service, board.depends_on) == (True, (Dependency("trainer"),))
    assert [spec.image_of(role) for role in spec.roles] == ["img", "tb", "img"]
    assert spec.program_of(evaluation) == PayloadProgram("eval.sh", (), ("-x", "{index}"))
    assert evaluation.depends_on == (Dependency("trainer", Until.DONE),)
    assert (evaluation.retries, evaluation.resources.vcores) == (0, 3)
    assert [spec.placement_of(role) for role in spec.roles] == [
        Placement(nodes=("n1", "n2")),
        Placement(nodes=("n1", "n2"), exclude_nodes=("n9",)),
        Placement(nodes=("n1", "n2"), node_label="cpu"),
    ]
    assert [key for key, _ in spec.placement_keys()] == [
        "resources.nodes",
        "role board.exclude_nodes",
        "role eval.node_label",
    ]
    assert (spec.gang, spec.success) == (Gang.ALL, ("trainer",))
    assert (application.env, application.role_env) == ({"A": "app", "B": "app"}, {"trainer": {"A": "own"}})
    assert application.properties is not None
    assert "own" not in application.properties.masked().to_text()


def test_several_roles_are_a_gang_by_default_and_one_is_not(place: Path, config: Config) -> None:
    assert read(place, MINIMAL, config).spec.gang is Gang.NONE
    assert read(place, MINIMAL + "gang=all\n", config).spec.gang is Gang.ALL
    assert read(place, MINIMAL + "[role a]\n", config).spec.gang is Gang.ALL
    assert read(place, MINIMAL + "gang=none\n[role a]\n", config).spec.gang is Gang.NONE


def test_an_application_of_commands_needs_no_workspace(place: Path, config: Config) -> None:
    spec = read(place, "[application]\nappname=a\ncommand=nvidia-smi -L\n", config).spec
    assert (spec.workspace, spec.program_of(spec.roles[0])) == ("", PayloadProgram("", ("nvidia-smi", "-L"), ()))
    spec = read(place, "[application]\nappname=a\n[role a]\ncommand=b\n", config).spec
    assert (spec.workspace, spec.script, spec.roles[0].command) == ("", "", ("b",))


def test_all_faults_of_roles_are_named_at_once_with_their_lines(place: Path, config: Config) -> None:
    text = MINIMAL + (
        "success=b, worker\non_container_failure=continue\n"
        "[role a]\nscript=none.sh\ndepends_on=b\n"
        "[role b]\ndepends_on=c:done, a\ninstances=100000\n"
        "[role c]\nservice=true\nenv.CONTAINER_INDEX=1\nscript=../x\n"
    )
    assert refused(place, text, config) == [
        "1: role: all roles together have 100002 instances, the maximum is 100000",
        "5: application.success: there is no role worker, known are a, b, c",
        "6: application.on_container_failure: is continue, but the containers of c only work together (gang=all; "
        "with gang=none each is on its own)",
        f"8: role a.script: {place}/w/none.sh: there is no such file",
        "9: role a.depends_on: the roles wait for each other: a -> b -> a",
        "11: role b.depends_on: role c is a service, which is ended with the others and never done before",
        "15: role c.env.CONTAINER_INDEX: is set by dlapp and cannot be set here",
        "16: role c.script: '../x' leads out of the workspace",
    ]


def test_a_framework_makes_a_gang_of_all(place: Path, config: Config) -> None:
    spec = read(place, MINIMAL + "framework=pytorch\n[resources]\ncontainers=4\n", config).spec
    assert (spec.framework, spec.gang, spec.success) == (Framework.PYTORCH, Gang.ALL, ())
    assert read(place, MINIMAL + "framework=none\n", config).spec.gang is Gang.NONE


def test_with_tensorflow_the_chief_decides_and_ps_and_evaluator_are_services(place: Path, config: Config) -> None:
    text = MINIMAL + "framework=tensorflow\n[role chief]\n[role worker]\ninstances=2\n[role ps]\n[role evaluator]\n"
    spec = read(place, text, config).spec
    assert spec.success == ("chief",)
    assert [role.name for role in spec.roles if role.service] == ["ps", "evaluator"]
    spec = read(place, text.replace("[role chief]", "success=all\n[role chief]"), config).spec
    assert spec.success == ()


def test_a_role_that_waits_for_the_end_of_the_application_is_warned_of(place: Path, config: Config) -> None:
    text = MINIMAL + "success=trainer\n[role trainer]\n[role evaluation]\ndepends_on=trainer:done\n"
    line = text.count("\n")
    assert read(place, text, config).notes == (
        f"warning: {place}/app.properties:{line}: role evaluation.depends_on: the application ends with trainer "
        "(success), so evaluation never starts",
    )
    assert read(place, text.replace("success=trainer\n", ""), config).notes == ()
    assert read(place, text.replace("trainer:done", "trainer"), config).notes == ()


def test_all_faults_of_a_framework_are_named_at_once_with_their_lines(place: Path, config: Config) -> None:
    text = MINIMAL + (
        "framework=tensorflow\ngang=role\ndocker_image=img\nnetwork=bridge\n"
        "[role chief]\ninstances=2\non_failure=restart\n"
        "[role ps]\n"
        "[role trainer]\n"
    )
    problem = "is no task type of TensorFlow (chief, worker, ps, evaluator); another role needs service=true"
    assert refused(place, text, config) == [
        "6: application.gang: is role, but with framework=tensorflow chief and ps start together",
        "8: application.network: is bridge; the ports of role chief can be reached only with host",
        "10: role chief.instances: is 2, TensorFlow has one chief at most",
        "11: role chief.on_failure: is restart, but in tensorflow one process cannot join the others later; use "
        "restart_gang",
        "12: role ps: serves workers, and there is no role worker",
        f"13: role trainer: {problem}",
    ]


def test_containers_of_a_framework_have_the_network_of_the_host(place: Path, config: Config) -> None:
    spec = read(place, MINIMAL + "framework=pytorch\ndocker_image=img\n", config).spec
    assert spec.network == "host"
    assert read(place, MINIMAL + "framework=pytorch\n", config).spec.network is None


def test_a_spec_is_checked_for_its_framework_too(place: Path, config: Config) -> None:
    roles = (RoleSpec(name="a", ports=1), RoleSpec(name="b"))
    spec = AppSpec(username="u", appname="n", command=("x",), roles=roles, gang=Gang.ALL, framework=Framework.PYTORCH)
    with pytest.raises(FileRefused, match=r"\branks, and a and b decide;.*\n.*role b\.ports: is 0"):
        read_application(UnresolvedSpec(spec, {}), config, NO_GPUS)
    made = read_application(UnresolvedSpec(replace(spec, success=("a",), docker_image="i"), {}), config, NO_GPUS)
    assert (made.spec.framework, made.spec.network) == (Framework.PYTORCH, "host")


# ---- workdir ----


def test_a_command_in_an_image_starts_in_workdir_and_each_role_may_have_its_own(place: Path, config: Config) -> None:
    text = "[application]\nappname=a\ncommand=x\ndocker_image=i\nworkdir=/app\n[role b]\n[role c]\nworkdir=/opt/c d\n"
    spec = read(place, text, config).spec
    assert [spec.workdir_of(role) for role in spec.roles] == ["/app", "/opt/c d"]
    mixed = MINIMAL + "docker_image=i\nworkdir=/app\n[role b]\n[role c]\ncommand=x\n"
    spec = read(place, mixed, config).spec
    assert [spec.workdir_of(role) for role in spec.roles] == ["", "/app"]


@pytest.mark.parametrize(
    ("more", "where", "problem"),
    [
        ("workdir=/app\n", "application.workdir", "it needs docker_image and command"),
        ("docker_image=i\nworkdir=/app\n", "application.workdir", "it needs docker_image and command"),
        ("docker_image=i\nworkdir=app\n", "application.workdir", "'app' is not an absolute path"),
        (
            "docker_image=i\nworkdir=/a/../b\n",
            "application.workdir",
            "write it without a slash at its end, //, . and ..",
        ),
        ("[role b]\nworkdir=/app\n", "role b.workdir", "it needs docker_image and command"),
        ("docker_image=i\n[role b]\nworkdir=/app\n", "role b.workdir", "it needs docker_image and command"),
    ],
)
def test_workdir_without_a_command_in_an_image_is_refused(
    place: Path, config: Config, more: str, where: str, problem: str
) -> None:
    (found,) = refused(place, MINIMAL + more, config)
    assert f"{where}: " in found
    assert problem in found


# ---- idle_guard ----


def test_the_configured_guard_against_idle_gpus_is_for_applications_with_gpus(place: Path) -> None:
    texts = {"defaults.idle_guard": "5%, 1m, warn"}
    config = load_config(texts, {"HOME": "/x"}, system_file=missing())

    def guard(text: str, engine: EngineInfo = GPUS) -> IdleGuard | None:
        return read(place, MINIMAL + text, config, engine).spec.idle_guard

    assert guard("") == IdleGuard(0.05, 60.0, IdleAction.WARN)
    assert guard("", NO_GPUS) is None
    assert guard("idle_guard=off\n") is None
    assert guard("idle_guard=0.1,2m,stop\n") == IdleGuard(0.1, 120.0, IdleAction.STOP)
    assert guard("[resources]\ncontainers=10000\n") == IdleGuard(0.05, 300.0, IdleAction.WARN)


def test_a_guard_against_idle_gpus_is_refused_where_there_are_none(place: Path, config: Config) -> None:
    assert refused(place, MINIMAL + "idle_guard=5%,30m,warn\n[resources]\ngcores=0\n", config) == [
        "5: application.idle_guard: has no effect: no role has GPUs (gcores)"
    ]
    assert refused(place, MINIMAL + "idle_guard=5%,20s,warn\n[resources]\ngcores=1\n", config) == [
        "5: application.idle_guard: the window is 20 s, the minimum is 30 s"
    ]
