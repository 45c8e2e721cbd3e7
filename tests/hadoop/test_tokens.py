"""Credentials files: golden bytes of both versions, and files that are cut or spoiled."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token, encode_vint, read_container_credentials

SERVICE = "127.0.0.1:8030"
TOKEN = Token(
    bytes.fromhex("0a0d0a0908071080d095ffbc3110011005"),
    bytes.fromhex("3fd6f2cb6d0794a8efbc9f1d7c61944304bba2a7"),
    AM_RM_KIND,
    SERVICE,
)
VERSION_0 = bytes.fromhex(
    "48445453 00 01 0e 3132372e302e302e313a38303330"
    "11 0a0d0a0908071080d095ffbc3110011005 14 3fd6f2cb6d0794a8efbc9f1d7c61944304bba2a7"
    "10 5941524e5f414d5f524d5f544f4b454e 0e 3132372e302e302e313a38303330 01 02 736b 03 090807"
)
VERSION_1 = bytes.fromhex(
    "48445453 01 6a 0a5d 0a0e 3132372e302e302e313a38303330"
    "124b 0a11 0a0d0a0908071080d095ffbc3110011005 1214 3fd6f2cb6d0794a8efbc9f1d7c61944304bba2a7"
    "1a10 5941524e5f414d5f524d5f544f4b454e 220e 3132372e302e302e313a38303330 1209 0a02 736b 1a03 090807"
)
TOKENS = st.builds(Token, st.binary(max_size=200), st.binary(max_size=40), st.text(max_size=20), st.text(max_size=20))


@pytest.mark.parametrize("data", [VERSION_0, VERSION_1])
def test_both_versions_of_the_file_are_read(data: bytes) -> None:
    found = Credentials.decode(data)
    assert found == Credentials({SERVICE: TOKEN}, {"sk": b"\x09\x08\x07"})
    assert found.tokens[SERVICE].password == TOKEN.password


def test_version_0_is_written_byte_for_byte() -> None:
    assert Credentials({SERVICE: TOKEN}, {"sk": b"\x09\x08\x07"}).encode() == VERSION_0
    assert Credentials().encode() == bytes.fromhex("48445453 00 00 00")


def test_the_url_form_is_hadoops() -> None:
    assert TOKEN.to_url() == (
        "EQoNCgkIBxCA0JX_vDEQARAFFD_W8sttB5So77yfHXxhlEMEu6KnEFlBUk5fQU1fUk1fVE9LRU4OMTI3LjAuMC4xOjgwMzA"
    )


@pytest.mark.parametrize(
    ("value", "hexes"),
    [
        *[(0, "00"), (127, "7f"), (128, "8f80"), (200, "8fc8"), (255, "8fff"), (256, "8e0100"), (65535, "8effff")],
        *[(-1, "ff"), (-112, "90"), (-113, "8770")],
    ],
)
def test_a_vint_is_hadoops(value: int, hexes: str) -> None:
    assert encode_vint(value).hex() == hexes


@given(st.dictionaries(st.text(max_size=20), TOKENS, max_size=4), st.dictionaries(st.text(), st.binary(max_size=300)))
def test_encoded_credentials_are_decoded_unchanged(tokens: dict[str, Token], secrets: dict[str, bytes]) -> None:
    credentials = Credentials(tokens, secrets)
    assert Credentials.decode(credentials.encode()) == credentials


@pytest.mark.parametrize("data", [VERSION_0, VERSION_1])
def test_a_file_cut_at_any_byte_is_refused(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(HadoopError):
            Credentials.decode(data[:end])


@given(st.binary(max_size=100), st.sampled_from([b"HDTS\0", b"HDTS\1", b""]))
def test_garbage_is_refused_with_a_dlapp_error(data: bytes, start: bytes) -> None:
    with contextlib.suppress(HadoopError):
        Credentials.decode(start + data)


def test_the_own_token_is_found_by_its_kind_and_kept_from_tasks() -> None:
    other = Token(b"i", b"p", "HDFS_DELEGATION_TOKEN")
    both = Credentials({"hdfs": other, "": Token(b"a", b"b", AM_RM_KIND)})
    assert both.of_kind(AM_RM_KIND) == Token(b"a", b"b", AM_RM_KIND)
    assert both.without(AM_RM_KIND).tokens == {"hdfs": other}
    assert both.of_kind("NMToken") is None


def test_the_file_of_a_container_is_found_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "container_tokens").write_bytes(VERSION_0)
    found = read_container_credentials({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "container_tokens")})
    assert found.of_kind(AM_RM_KIND) == TOKEN
    with pytest.raises(HadoopError, match="not started by a NodeManager"):
        read_container_credentials({})
    with pytest.raises(HadoopError, match="No such file"):
        read_container_credentials({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "none")})
