"""Variables of the submitter: which of them a program gets without ``pass_env``, and which are well known otherwise.

A plain process on one machine gets `ENVIRONMENT`, `PROXIES` and `CERTIFICATES`, and a program in Docker there
`PROXIES`: the files of `CERTIFICATES` need not exist in its image. On a cluster a program gets neither: the nodes may
be in another network.

Source of the names: curl(1), Environment; Python's urllib.request.getproxies_environment, ssl.get_default_verify_paths;
requests, SSL Cert Verification; botocore, pip, git-config(1), Node.js and gRPC for their own.
"""

from __future__ import annotations

from collections.abc import Mapping

ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"),
)
"""Variables of the submitter that a plain process gets, besides those that begin with LC_."""
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
"""In small letters; programs also read them in capitals."""
CERTIFICATES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "PIP_CERT"),
    *("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "NODE_EXTRA_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)
_WELL_KNOWN = frozenset(
    (
        *(
            "HUGGING_FACE_HUB_TOKEN",
            "GITHUB_TOKEN",
            "GH_TOKEN",
            "TOKENIZERS_PARALLELISM",
            "NLTK_DATA",
            "S3_ENDPOINT_URL",
        ),
        *("PYTHONPATH", "PYTHONHASHSEED", "CUDA_HOME", "CUDA_PATH", "CUDA_LAUNCH_BLOCKING", "XLA_FLAGS"),
        *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL"),
        *("TF_FORCE_GPU_ALLOW_GROWTH", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "TF_GPU_ALLOCATOR"),
        *("TF_DETERMINISTIC_OPS", "TFHUB_CACHE_DIR", "TIKTOKEN_CACHE_DIR", "FASTEMBED_CACHE_PATH"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_CONFIG_FILE"),
        *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"),
    )
)
_FAMILIES = (
    *("HF_", "WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "KAGGLE_", "DATABRICKS_", "OPENAI_", "ANTHROPIC_"),
    *("AWS_", "AZURE_", "GOOGLE_", "OMP_", "NCCL_", "TORCH_", "PYTORCH_", "JAX_", "KERAS_", "TRANSFORMERS_"),
    *("TRITON_", "TORCHINDUCTOR_"),
)
"""Beginnings of names that one library or service reads. Those of pip, uv and TensorFlow (``TF_`` is Terraform's, too)
are listed one by one."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the submitter that are kept for programs."""
    return {
        name: text
        for name, text in environ.items()
        if name in ENVIRONMENT or name.startswith("LC_") or is_proxy(name) or name in CERTIFICATES
    }


def is_proxy(name: str) -> bool:
    """Return whether a variable names a proxy, or hosts without one."""
    return name.lower() in PROXIES and (name.islower() or name.isupper())


def without_replaced(submitter: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return variables of the submitter without the proxies that the user sets, in small letters or capitals: a library
    reads both."""
    replaced = {name.lower() for name in user if is_proxy(name)}
    return {name: text for name, text in submitter.items() if not is_proxy(name) or name.lower() not in replaced}


def proxies_in_docker(submitter: Mapping[str, str], *, own_network: bool) -> dict[str, str]:
    """Return the proxies of the submitter that a program in Docker can reach.

    Args:
        own_network: whether its loopback interface is not that of the machine.
    """
    found = {name: text for name, text in submitter.items() if is_proxy(name)}
    return {
        name: text
        for name, text in found.items()
        if not own_network or name.lower() == "no_proxy" or not _is_loopback(text)
    }


def is_well_known(name: str) -> bool:
    """Return whether programs of other users read a variable of this name, too."""
    return is_proxy(name) or name in _WELL_KNOWN or name in CERTIFICATES or name.startswith(_FAMILIES)


def _is_loopback(proxy: str) -> bool:
    from urllib.parse import urlsplit  # takes 5 ms, and most submitters have no proxy

    try:
        host = urlsplit(proxy if "://" in proxy else f"//{proxy}").hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".localhost")
