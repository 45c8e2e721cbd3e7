from __future__ import annotations

import pytest

from dlapp.storage.links import link_kept_inside

LINKS = {
    "up": "..",
    "down": "a/b",
    "a/b/root": "../..",
    "abs": "/tree/a",
    "seen": "/in/docker/a",
    "far": "/etc",
    "x": "y",
    "y": "x",
}


@pytest.mark.proves("output-links")
@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("l", "a", "a"),
        ("l", ".", "."),
        ("l", "./a//b/../c", "./a//b/../c"),
        ("l", "missing/../also", "missing/../also"),
        ("l", "..", None),
        ("l", "a/../..", None),
        ("a/l", "..", ".."),
        ("a/l", "../..", None),
        ("a/l", "../../tree/a", None),
        # Through other links.
        ("l", "down/../c", "down/../c"),
        ("l", "down/../..", "down/../.."),
        ("l", "down/../../..", None),
        ("l", "a/b/root/x", "a/b/root/x"),
        ("l", "a/b/root/../x", None),
        ("l", "up/a", None),
        ("l", "abs/b", "abs/b"),
        ("l", "abs/../..", None),
        ("l", "seen/b", "seen/b"),
        ("l", "far/passwd", None),
        ("l", "x/anything", "x/anything"),
        # Absolute ones.
        ("l", "/etc", None),
        ("l", "/treehouse", None),
        ("l", "/tree", "."),
        ("l", "/tree/", "."),
        ("l", "/tree/a/b", "a/b"),
        ("a/l", "/tree", ".."),
        ("a/b/l", "/tree", "../.."),
        ("a/b/l", "/tree/c", "../../c"),
        ("a/l", "/in/docker/c", "../c"),
        ("l", "/tree/a/../..", None),
    ],
)
def test_a_link_is_kept_if_its_whole_way_stays_in_the_tree(name: str, text: str, stored: str | None) -> None:
    assert link_kept_inside(name, text, ["/tree", "/in/docker"], LINKS.get) == stored
