"""DIGEST-MD5 as Hadoop speaks it: golden values, both ends together, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop.errors import HadoopError, NotHadoop
from dlapp.hadoop.sasl import DigestMd5, Security, parse_attributes
from dlapp.hadoop.tokens import Token

TOKEN = Token(
    bytes.fromhex("0a0d0a0908071080d095ffbc3110011005"),
    bytes.fromhex("3fd6f2cb6d0794a8efbc9f1d7c61944304bba2a7"),
    "YARN_AM_RM_TOKEN",
)
NONCE = "AAECAwQFBgcICQoLDA0ODw=="
CHALLENGE = f'realm="default",nonce="{NONCE}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()


def test_the_response_and_the_proof_are_those_that_hadoop_accepts() -> None:
    digest = DigestMd5(TOKEN, cnonce=NONCE)
    answer = digest.respond(CHALLENGE).decode()
    assert answer == (
        f'charset=utf-8,username="Cg0KCQgHEIDQlf+8MRABEAU=",realm="default",nonce="{NONCE}",nc=00000001,'
        f'cnonce="{NONCE}",digest-uri="/default",maxbuf=65536,response=f0e505078be7bb5daa118fa04637106d,qop=auth'
    )
    digest.finish(b"rspauth=95d1a6fde5ee7c350db62c79812a0464")
    assert digest.security is None


@pytest.mark.parametrize("proof", [b"rspauth=95d1a6fde5ee7c350db62c79812a0465", b"", b"rspauth="])
def test_a_server_that_does_not_know_the_password_is_refused(proof: bytes) -> None:
    digest = DigestMd5(TOKEN, cnonce=NONCE)
    digest.respond(CHALLENGE)
    with pytest.raises(HadoopError, match="could not prove"):
        digest.finish(proof)


@pytest.mark.parametrize(
    ("offered", "ciphers", "chosen"),
    [
        ("auth", "", "auth"),
        ("auth-int", "", "auth-int"),
        ("auth-conf", "3des,rc4,des,rc4-56,rc4-40", "auth-conf"),
        ("auth-conf,auth-int", "3des,des", "auth-int"),
        ("auth-int,auth", "", "auth-int"),
    ],
)
def test_the_protection_is_the_first_that_the_server_names_and_we_have(offered: str, ciphers: str, chosen: str) -> None:
    digest = DigestMd5(TOKEN)
    answer = digest.respond(f'realm="default",nonce="n",qop="{offered}",cipher="{ciphers}"'.encode())
    assert parse_attributes(answer.decode())["qop"] == chosen == digest.qop


def test_a_protection_that_we_do_not_have_is_named() -> None:
    with pytest.raises(HadoopError, match=r"auth-conf .*hadoop\.rpc\.protection"):
        DigestMd5(TOKEN).respond(b'realm="default",nonce="n",qop="auth-conf",cipher="3des"')


@pytest.mark.parametrize("challenge", [b"", b'realm="default"', b'nonce="x', b"\xff\xfe", b'nonce="n",algorithm=md5'])
def test_a_challenge_that_cannot_be_read_is_refused(challenge: bytes) -> None:
    with pytest.raises(NotHadoop):
        DigestMd5(TOKEN).respond(challenge)


@given(st.binary(max_size=200))
def test_garbage_in_place_of_a_challenge_is_a_dlapp_error(challenge: bytes) -> None:
    with contextlib.suppress(HadoopError):
        DigestMd5(TOKEN).respond(challenge)


def test_attributes_are_read_with_blanks_quotes_and_escapes() -> None:
    assert parse_attributes('a = "x,\\"y" , b=1,C="",d=') == {"a": 'x,"y', "b": "1", "c": "", "d": ""}


@pytest.mark.parametrize("seal", [False, True])
@given(messages=st.lists(st.binary(max_size=100), max_size=5))
def test_wrapped_messages_are_unwrapped_in_order(seal: bool, messages: list[bytes]) -> None:
    key = bytes(16)
    client, server = Security(key, seal=seal), Security(key, seal=seal, server=True)
    for data in messages:
        wrapped = client.wrap(data)
        assert server.unwrap(wrapped) == data
        assert client.unwrap(server.wrap(data)) == data
        assert (data in wrapped) or seal or not data


@pytest.mark.parametrize("seal", [False, True])
def test_a_wrapped_message_spoiled_at_any_byte_repeated_or_left_out_is_refused(seal: bool) -> None:
    key = bytes(range(16))
    wrapped = Security(key, seal=seal).wrap(b"data")
    for offset in range(len(wrapped)):
        spoiled = wrapped[:offset] + bytes([wrapped[offset] ^ 1]) + wrapped[offset + 1 :]
        with pytest.raises(NotHadoop):
            Security(key, seal=seal, server=True).unwrap(spoiled)
    server = Security(key, seal=seal, server=True)
    server.unwrap(wrapped)
    with pytest.raises(NotHadoop):
        server.unwrap(wrapped)


def test_a_token_never_shows_its_password() -> None:
    assert repr(TOKEN) == "Token(kind='YARN_AM_RM_TOKEN', service='')"
