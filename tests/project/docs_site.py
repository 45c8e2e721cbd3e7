"""Build the site of the documentation with the anchors of GitHub: a hook of mkdocs, for ``make docs``."""

from __future__ import annotations

import re
from typing import Any


def anchor(heading: str, _separator: str = "-") -> str:
    """Return the name by which GitHub's links reach a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def on_config(config: Any) -> None:
    """Set what mkdocs makes of a heading; called by mkdocs."""
    config["mdx_configs"]["toc"] = {"slugify": anchor}
