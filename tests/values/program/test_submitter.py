"""Test which variables of the submitter reach a program."""

from __future__ import annotations

import pytest

from dlapp.values.program.submitter import inherited, is_well_known, proxies_in_docker, without_replaced


def test_a_program_gets_its_environment_proxies_and_certificates() -> None:
    passed = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "https_proxy": "http://user:secret@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "all_proxy": "socks5h://proxy",
        "SSL_CERT_FILE": "/ca.pem",
        "REQUESTS_CA_BUNDLE": "/ca.pem",
        "NODE_EXTRA_CA_CERTS": "/ca.pem",
    }
    others = {"HF_TOKEN": "t", "Http_Proxy": "x", "MY_https_proxy": "x", "PYTHONPATH": "/p", "SSL_CERT_FILES": "x"}
    assert inherited({**passed, **others}) == passed


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
@pytest.mark.parametrize("value", ["", "http://other:1"])
def test_a_proxy_that_the_user_sets_or_empties_replaces_both_spellings(name: str, value: str) -> None:
    submitter = {"https_proxy": "http://a:1", "HTTPS_PROXY": "http://a:1", "http_proxy": "http://a:1", "PATH": "/bin"}
    assert without_replaced(submitter, {name: value, "HTTP_PROXY_X": "1"}) == {
        "http_proxy": "http://a:1",
        "PATH": "/bin",
    }


@pytest.mark.parametrize(
    ("proxy", "is_reached"),
    [
        ("http://proxy.example:3128", True),
        ("http://user:127.0.0.1@proxy:3128", True),
        ("proxy:3128", True),
        ("http://10.0.0.1:3128", True),
        ("http://127.0.0.1:3128", False),
        ("http://user:secret@localhost:3128", False),
        ("localhost:3128", False),
        ("socks5h://[::1]:1080", False),
        ("http://LOCALHOST:1", False),
        ("http://[broken", True),
    ],
)
def test_a_container_with_a_network_of_its_own_gets_no_proxy_of_the_machines_loopback(
    proxy: str, is_reached: bool
) -> None:
    submitter = {"https_proxy": proxy, "no_proxy": "localhost,127.0.0.1", "PATH": "/bin", "SSL_CERT_FILE": "/ca.pem"}
    found = proxies_in_docker(submitter, own_network=True)
    assert ("https_proxy" in found) is is_reached
    assert found["no_proxy"] == "localhost,127.0.0.1"
    assert found.keys() <= {"https_proxy", "no_proxy"}
    assert proxies_in_docker(submitter, own_network=False)["https_proxy"] == proxy


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "HF_HOME", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
        *("PIP_INDEX_URL", "PYTHONPATH", "CUDA_HOME", "http_proxy", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
        *("OMP_NUM_THREADS", "NCCL_DEBUG", "GOOGLE_APPLICATION_CREDENTIALS", "TOKENIZERS_PARALLELISM"),
    ],
)
def test_names_that_libraries_read_are_well_known(name: str) -> None:
    assert is_well_known(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "EDITOR",
        "LESS",
        "PS1",
        "CONDA_SHLVL",
        "SSH_AUTH_SOCK",
        "MY_TOKEN",
        "_",
        "TF_VAR_x",
        "PIP_DEFAULT_TIMEOUT",
    ],
)
def test_names_of_a_shell_or_of_the_user_are_not(name: str) -> None:
    assert not is_well_known(name)
