"""The page in a real browser: no overflow at 390 px, every plot has ink, light and dark differ."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from smoke.mock.state import State
from smoke.mock.target import MockServer, MockTarget
from smoke.report.plots import _SERIES
from smoke.report.write import html
from tests.smoke.test_report import report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.suite,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)"),
]

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
# Writes what a person would see into the title, which --dump-dom prints.
PROBE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, pre, svg") &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className);
  const plots = [...document.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect().width);
  const boxes = [...document.querySelectorAll("figure svg")].map(s => {
    const r = s.getBoundingClientRect(); return [r.x, r.y, r.width, r.height].map(Math.round) });
  document.title = JSON.stringify({boxes, scroll: document.documentElement.scrollWidth, inner: innerWidth, wide, plots});
})</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    server = MockServer(State())
    target = MockTarget(server)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html(report(target, failed=True)).replace("</body>", PROBE + "</body>"))
    yield path
    server.close()


def browser(page: Path, tmp: Path, *flags: str) -> str:
    assert BROWSER
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def shot(page: Path, tmp: Path, scheme: str, width: int) -> np.ndarray:
    out = tmp / f"{scheme}.png"
    dark = "0" if scheme == "dark" else "1"
    flags = (f"--window-size={width},3200", f"--blink-settings=preferredColorScheme={dark}")
    browser(page, tmp, *flags, f"--screenshot={out}")
    import matplotlib.image

    return np.asarray(matplotlib.image.imread(out))[..., :3]


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows(page: Path, tmp_path: Path, width: int) -> None:
    # Headless Chromium will not make a window narrower than about 500 px: the page goes into a frame of the width.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="f" src="{page.as_uri()}" style="width:{width}px;height:4000px;border:0"></iframe><script>'
        'addEventListener("message", e => { document.title = e.data })</script>'
    )
    text = page.read_text()
    framed = page.with_name("framed.html")
    framed.write_text(text.replace("document.title = JSON", 'parent.postMessage(JSON').replace(
        "wide, plots});", 'wide, plots}), "*");'))  # fmt: skip
    frame.write_text(frame.read_text().replace(page.as_uri(), framed.as_uri()))
    dom = browser(frame, tmp_path, "--dump-dom", "--window-size=1400,4200", "--virtual-time-budget=4000",
                  "--allow-file-access-from-files")  # fmt: skip
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found, dom[:300]
    seen = json.loads(unescape(found[1]))
    assert seen["inner"] == width
    assert seen["scroll"] <= width
    assert seen["wide"] == []
    assert len(seen["plots"]) == 6
    assert all(200 < w <= width for w in seen["plots"])


def boxes(page: Path, tmp: Path, width: int) -> list[tuple[int, int, int, int]]:
    """x, y, width, height of every plot, in pixels of a screenshot of that width."""
    dom = browser(page, tmp, "--dump-dom", f"--window-size={width},3200", "--virtual-time-budget=4000")
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found, dom[:300]
    return [(b[0], b[1], b[2], b[3]) for b in json.loads(unescape(found[1]))["boxes"]]


def coloured(image: np.ndarray) -> float:
    """Share of pixels that have a colour of their own: data has, axes and words are grey."""
    return float(((image.max(axis=-1) - image.min(axis=-1)) > 0.25).mean())


def test_no_plot_is_blank_in_light_or_dark(page: Path, tmp_path: Path) -> None:
    light, dark = (shot(page, tmp_path, scheme, 900) for scheme in ("light", "dark"))
    assert light.mean() > 0.8
    assert dark.mean() < 0.3
    places = boxes(page, tmp_path, 900)
    assert len(places) == 6
    for image in (light, dark):
        background = image[5, 5]
        # Words stand out from the page: enough pixels far from its background.
        assert (np.abs(image - background).max(axis=-1) > 0.4).mean() > 0.01
        for x, y, w, h in places:
            assert y + h < image.shape[0], "the window is too low to show every plot"
            assert coloured(image[y : y + h, x : x + w]) > 0.001


def test_a_plot_without_its_data_would_be_called_blank(page: Path, tmp_path: Path) -> None:
    """The measure itself: the same page with its series in grey."""
    grey = tmp_path / "grey.html"
    grey.write_text(re.sub("|".join(_SERIES), "#808080", page.read_text()))
    image = shot(grey, tmp_path, "light", 900)
    assert [coloured(image[y : y + h, x : x + w]) > 0.001 for x, y, w, h in boxes(grey, tmp_path, 900)] == [
        False
    ] * 6
