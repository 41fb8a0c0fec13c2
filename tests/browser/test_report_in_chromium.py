"""The page in a real browser: nothing runs over the edge, at two widths and in both colour schemes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import judgements
from samebits.report.html import report_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")

WIDTHS = (1200, 400)
# The page is judged inside frames of exact width (a headless window has a minimum). Only this copy has a script.
FRAME = '<iframe style="width:{width}px;height:800px;border:0" srcdoc="{page}"></iframe>'
SCRIPT = """<script>
onload = () => {
  const results = [...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument;
    for (const part of page.querySelectorAll("details")) part.open = true;
    const edge = page.documentElement.clientWidth;
    const wide = [...page.querySelectorAll("main *, header *, footer *")].filter(
      (part) => !part.closest(".frame, svg, .unseen") && part.getBoundingClientRect().right > edge + 1);
    wide.push(...[...page.querySelectorAll("figure svg text")].filter((text) => {
      const [inner, outer] = [text, text.closest("svg")].map((part) => part.getBoundingClientRect());
      return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
    }));
    return [edge, page.documentElement.scrollWidth, wide.map((part) => part.outerHTML.slice(0, 80))];
  });
  document.title = "result " + JSON.stringify(results).replaceAll("<", "(");
};
</script>"""


def chromium(tmp_path: Path, *arguments: str) -> str:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def in_frames(source: str) -> str:
    source = re.sub(r"<meta http-equiv=[^\n]*\n", "", source).replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(FRAME.format(page=source, width=width) for width in WIDTHS)
    return f'<!DOCTYPE html><meta charset="utf-8"><body>{frames}{SCRIPT}'


def hostile_costs() -> judgements.Judgement:
    return judgements.hostile(judgements.priced(judgements.cheap().costs[1]))


@pytest.mark.parametrize(
    "build", [judgements.failing, judgements.hostile, judgements.cheap, judgements.too_short, hostile_costs]
)
def test_nothing_runs_over_the_edge_even_with_all_details_open(build, tmp_path: Path) -> None:
    path = tmp_path / "frames.html"
    path.write_text(in_frames(report_html(build())), encoding="utf-8")
    dom = chromium(tmp_path, "--hide-scrollbars", "--dump-dom", path.as_uri())
    title = re.search(r"<title>result (.*?)</title>", dom, flags=re.DOTALL)
    assert title, "the page did not load"
    assert json.loads(title[1]) == [[width, width, []] for width in WIDTHS]


@pytest.mark.parametrize(("scheme", "background"), [("light", (245, 246, 248)), ("dark", (19, 22, 27))])
def test_both_colour_schemes_give_a_picture(scheme: str, background: tuple[int, int, int], tmp_path: Path) -> None:
    from matplotlib.image import imread

    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(report_html(judgements.inconclusive()), encoding="utf-8")
    preference = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    chromium(
        tmp_path, preference, "--hide-scrollbars", "--window-size=1200,900", f"--screenshot={picture}", page.as_uri()
    )
    pixels = imread(picture)
    assert pixels.shape[:2] == (900, 1200)
    assert tuple(round(float(part) * 255) for part in pixels[600, 5, :3]) == background
