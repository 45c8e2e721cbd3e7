"""Where a configuration says that the ledger is, and who may write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import load_config
from dlapp.errors import ConfigError
from dlapp.gpuid.factory import configured


def settings(credentials: str | None = None) -> str:
    """Return the credentials with which the ledger of a cluster would be opened."""
    options = {"gpuid.zookeeper.ensemble": "127.0.0.1:1"}
    if credentials is not None:
        options["gpuid.zookeeper.credentials"] = credentials
    return configured(load_config(options, {}, system_file="/nonexistent")).credentials


def test_a_ledger_on_zookeeper_needs_credentials_or_the_word_none() -> None:
    with pytest.raises(ConfigError, match=r"name a file of mode 0600 with user:password, or write none"):
        settings()
    assert settings("none") == ""


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("dlapp:secret\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others; chmod 600 "):
        settings(str(file))
    file.chmod(0o600)
    assert settings(str(file)) == "dlapp:secret"


@pytest.mark.parametrize("text", ["", "dlapp", "dlapp:", ":secret", "a:b\nc:d"])
def test_credentials_are_one_line_with_user_and_password(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="is not one line user:password"):
        settings(str(file))
