"""The submitter's credentials for the registries of an application's images, from their own Docker configuration.

Source: `docker login`; the CLI's ``config.json`` (auths, credsStore, credHelpers), and the protocol of credential
helpers: https://github.com/docker/docker-credential-helpers, "Development".
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dlapp.errors import Denied
from dlapp.system.owners import check_not_writable_by_others
from dlapp.system.waits import Wait
from dlapp.values.image_name import DOCKER_HUB, RegistryCredentials, parse_image_name

if TYPE_CHECKING:
    from dlapp.node_policy import RegistryPolicy

MAX_BYTES = 1 << 20
HELPER_S = 30.0
_HUB_KEY = "https://index.docker.io/v1/"
"""Key of the credentials for Docker Hub in the file of `docker login`."""
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NONE_KEPT = "credentials not found"
_BY_TOKEN = "<token>"


class _Unusable(Exception):
    """Credentials that cannot be used; the text is the reason."""


def collect_credentials(
    images: Iterable[str], policy: RegistryPolicy | None, note: Callable[[str], None], environ: Mapping[str, str]
) -> dict[str, RegistryCredentials]:
    """Return image -> credentials for its registry, for images whose registry the user has credentials for.

    Args:
        images: as in the properties file.
        policy: registry rules of the machine that runs the containers; None if they are not known.
        note: called with the reason if credentials cannot be used; the image is then pulled without.
        environ: the environment of the caller.
    """
    names = {}
    for image in sorted(set(images)):
        try:
            name = parse_image_name(image)
            names[image] = (policy.resolve(name) if policy is not None else name).registry
        except ValueError:
            continue  # the task reports what is wrong with it
    home = environ.get("HOME") or os.path.expanduser("~")
    path = os.path.join(environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json")
    found: dict[str, RegistryCredentials] = {}
    if not names or not os.path.exists(path):
        return found
    by_registry: dict[str, RegistryCredentials | None] = {}
    for image, registry in names.items():
        if registry and registry not in by_registry:
            try:
                by_registry[registry] = _credentials_for(registry, path, environ)
            except (_Unusable, Denied) as error:
                by_registry[registry] = None
                note(f"images of {registry} are pulled without your credentials: {error}")
        if credentials := by_registry.get(registry):
            found[image] = credentials
    return found


def _credentials_for(registry: str, path: str, environ: Mapping[str, str]) -> RegistryCredentials | None:
    check_not_writable_by_others(path)  # it names programs to execute
    config = _read_config(path)
    key = _HUB_KEY if registry == DOCKER_HUB else registry
    helpers = config.get("credHelpers")
    helper = (helpers.get(registry) if isinstance(helpers, dict) else None) or config.get("credsStore")
    kept = _run_helper(str(helper), key, environ) if helper else _read_auths(config, registry, path)
    if kept is None:
        return None
    # Source: moby, api/types/registry/authconfig.go, `EncodeAuthConfig`: URL-safe base64 of the JSON form.
    header = base64.urlsafe_b64encode(json.dumps({**kept, "serveraddress": key}).encode()).decode()
    return RegistryCredentials(registry, header)


def _read_config(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        config = json.loads(data) if len(data) <= MAX_BYTES else None
    except OSError as error:
        raise _Unusable(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"{path} is not JSON") from error
    if not isinstance(config, dict):
        raise _Unusable(f"{path} is not a configuration of Docker")
    return config


def _read_auths(config: dict[str, Any], registry: str, path: str) -> dict[str, str] | None:
    auths = config.get("auths")
    for key, entry in auths.items() if isinstance(auths, dict) else ():
        if _host_of(key) != registry or not isinstance(entry, dict):
            continue
        if token := entry.get("identitytoken"):
            return {"identitytoken": str(token)}
        user, password = entry.get("username"), entry.get("password")
        if auth := entry.get("auth"):
            try:
                user, colon, password = base64.b64decode(str(auth), validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise _Unusable(f"{path}: auths.{key}.auth is not base64 of NAME:PASSWORD") from error
            password = password.rstrip("\0") if colon else ""
        if user and password:
            return {"username": str(user), "password": str(password)}
    return None


def _host_of(key: str) -> str:
    host = key.partition("://")[2] or key
    host = host.partition("/")[0]
    return DOCKER_HUB if host == f"index.{DOCKER_HUB}" else host


def _run_helper(name: str, key: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    if not _HELPER.fullmatch(name):
        raise _Unusable(f"{name[:80]!r} is not the name of a credential helper")
    program = f"docker-credential-{name}"
    try:
        with Wait(f"credentials from {program}", HELPER_S):
            asked = subprocess.run(
                [program, "get"], input=key.encode(), capture_output=True, timeout=HELPER_S, env=dict(environ)
            )
    except FileNotFoundError as error:
        raise _Unusable(f"{program} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise _Unusable(f"{program} does not answer in {HELPER_S:g} s") from error
    except OSError as error:
        raise _Unusable(f"{program}: {error.strerror}") from error
    if asked.returncode != 0:
        said = (asked.stdout + asked.stderr).decode(errors="replace").strip()[:200]
        if _NONE_KEPT in said.lower():
            return None
        raise _Unusable(f"{program} failed: {said or f'exit code {asked.returncode}'}")
    try:
        answer = json.loads(asked.stdout[:MAX_BYTES])
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Unusable(f"{program} does not answer as a credential helper does") from error
    if user == _BY_TOKEN:
        return {"identitytoken": secret}
    return {"username": user, "password": secret} if user and secret else None
