"""Properties files, YAML, Hadoop's XML, patterns of names, and texts that go to a terminal."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from dlapp.application.properties import parse_properties
from dlapp.config import MAX_FILE_BYTES, load_config
from dlapp.errors import ConfigError
from dlapp.node_policy import node_policy
from dlapp.storage.glob import split_pattern
from dlapp.system.yaml_keys import plain_yaml
from dlapp.tools.common import one_line
from tests.fuzz.parsing import fuzz, limits

ROOT = Path(__file__).resolve().parents[2]


def test_a_properties_file_is_read_or_refused() -> None:
    samples = [path.read_bytes() for path in sorted(ROOT.glob("examples/*/*.properties"))]
    assert samples
    fuzz(lambda data: parse_properties(data, "x.properties"), samples)


def read_as_operators(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(data)
    path.chmod(0o644)
    node_policy(str(path), owner=os.geteuid())


def read_as_configuration(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    load_config(environ={"HOME": str(tmp_path), "DLAPP_CONFIG": str(path)}, system_file="")


def test_the_operators_file_is_read_or_refused(tmp_path: Path) -> None:
    samples = [(ROOT / "docs" / "node.yaml").read_bytes(), b"docker:\n  networks: [bridge, none]\n  root: false\n"]
    fuzz(lambda data: read_as_operators(data, tmp_path), samples)


def test_a_configuration_file_is_read_or_refused(tmp_path: Path) -> None:
    samples = [b"cluster: local\nlocal:\n  shared: true\ngpuid:\n  zookeeper:\n    ensemble: a:2181,b:2181\n"]
    fuzz(lambda data: read_as_configuration(data, tmp_path), samples)


def test_another_programs_yaml_is_read_or_refused() -> None:
    samples = [b"cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits: {}\n"]
    # PyYAML takes 15 us a byte; these files are root's.
    fuzz(lambda data: plain_yaml(data[:MAX_FILE_BYTES]), samples, errors=(ValueError,))


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("piece", [b"[", b"{", b'{"a":', b"[\n", b"- ", b"? ", b"a:\n", b"[a,", b"*&a", b"{a: b},"])
def test_yaml_as_large_as_it_may_be_is_read_or_refused_in_time(tmp_path: Path, piece: bytes) -> None:
    for beginning in (b"", b"[" * 31):
        data = (beginning + piece * MAX_FILE_BYTES)[:MAX_FILE_BYTES]
        for read in (read_as_operators, read_as_configuration):
            with limits(len(data)), suppress(ConfigError):
                read(data, tmp_path)
        with limits(len(data)), suppress(ValueError):
            plain_yaml(data)


@pytest.mark.parametrize(
    "text", ["!!bool x", "!!int ''", "!!timestamp x", "1:" * 400 + "1.5", "2001-99-99", "9" * 5000]
)
def test_scalars_of_another_program_are_texts_whatever_their_tags(text: str) -> None:
    assert plain_yaml(f"a: {text}".encode())["a"] in text


def test_yaml_that_grows_by_its_references_stays_small() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    merges = ["a0: &a0 {x: 1, y: 2}"]
    merges += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    for text in (lines, merges):
        with limits(1000):
            plain_yaml("\n".join(text).encode())


def test_a_pattern_of_names_is_read_or_refused() -> None:
    def read(data: bytes) -> None:
        for components in split_pattern(os.fsdecode(data)):
            for component in components:
                if not isinstance(component, str):
                    component.fullmatch("part-00000.gz")

    fuzz(read, [b"/data/{2023,2024/0[1-3]}/part-*.gz", b"/a/[!b-d]?/{x,{y,z}}*", b"/\\{a\\}/b"])


def test_terminal_output_has_no_control_characters() -> None:
    def show(data: bytes) -> None:
        shown = one_line(data.decode("utf-8", "surrogateescape"))
        assert not any((ord(item) < 32 and item != "\t") or 127 <= ord(item) < 160 for item in shown), shown
        assert "\u202e" not in shown
        shown.encode()

    fuzz(show, ["container_1 läuft\n".encode(), b"\x1b[31mred\x1b[0m\r"], errors=())
