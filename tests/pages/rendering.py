"""Checks of a page in a browser: reached by the keyboard, legible, narrow enough for a phone, and whole on paper."""

from __future__ import annotations

from tests.services.http.browser import Browser

PHONE_WIDTH = 360
CONTRAST, LARGE_CONTRAST = 4.5, 3.0
"""WCAG 2, level AA, success criterion 1.4.3; large is 24 px, or 18.66 px in bold."""

_CONTROLS = """\
[...document.querySelectorAll('a[href], summary, [tabindex="0"]')]
    .filter(one => one.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true}))"""
_FOCUSED = """\
(() => {
    const one = document.activeElement, style = getComputedStyle(one);
    if (one === document.body || one === null) return null;
    const place = CONTROLS.indexOf(one), seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
    return [place, seen];
})()""".replace("CONTROLS", _CONTROLS)
_CONTRASTS = """\
(() => {
    const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
    const below = one => {  // the colour under a text: that of the nearest element that has one
        for (; one; one = one.parentElement) {
            const colour = parse(getComputedStyle(one).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const one = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
        if (!text || one.closest('svg') || !one.checkVisibility()) continue;
        const style = getComputedStyle(one), size = parseFloat(style.fontSize);
        const two = [luminance(parse(style.color)), luminance(below(one))].sort((a, b) => b - a);
        found.push([text.slice(0, 40), (two[0] + 0.05) / (two[1] + 0.05),
                    size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)]);
    }
    return found;
})()"""


def check_keyboard(browser: Browser) -> int:
    """Go through the page by Tab: each control comes, in order, and shows that it has the focus. Return how many."""
    count = browser.value(f"{_CONTROLS}.length")
    browser.value("document.activeElement && document.activeElement.blur(), window.scrollTo(0, 0)")
    seen = []
    for _ in range(count):
        browser.press("Tab")
        seen.append(browser.value(_FOCUSED))
    assert seen == [[place, True] for place in range(count)]
    return int(count)


def check_contrast(browser: Browser) -> None:
    """Look at the contrast of each text in both schemes of colours."""
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        texts = browser.value(_CONTRASTS)
        assert len(texts) > 5
        assert [text for text in texts if text[1] < (LARGE_CONTRAST if text[2] else CONTRAST)] == [], scheme
    browser.prefer()


def check_phone(browser: Browser) -> None:
    """See that the page is no wider than a small phone; wide tables scroll by themselves."""
    browser.resize(PHONE_WIDTH, 640, is_phone=True)
    assert browser.value("document.documentElement.scrollWidth") == PHONE_WIDTH
    assert browser.value("window.innerWidth") == PHONE_WIDTH
    browser.resize(1200)
    assert browser.value("document.documentElement.scrollWidth") <= 1200


def check_print(browser: Browser) -> None:
    """See that what is folded is on paper, dark on white."""
    browser.prefer("dark", "print")
    hidden = "[...document.querySelectorAll('.ends pre')].filter(one => one.getBoundingClientRect().height < 5).length"
    assert browser.value(hidden) == 0
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.printed().startswith(b"%PDF-")
    browser.prefer()


def check_page(browser: Browser) -> int:
    """Do all of these checks with the page that is open, and return how many controls it has."""
    assert browser.value("document.scripts.length") == 0
    controls = check_keyboard(browser)
    check_contrast(browser)
    check_phone(browser)
    check_print(browser)
    return controls
