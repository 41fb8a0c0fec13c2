"""The HTML page: complete, closed in itself, escaped, well-formed, legible."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import judgements
from samebits.gates.judgement import Judgement
from samebits.report import html
from samebits.report.html import report_html
from samebits.report.words import one_line

BUILDERS = {
    **judgements.ALL,
    **judgements.PRICED,
    "hostile": judgements.hostile,
    "hostile costs": lambda: judgements.hostile(judgements.cheap()),
    "large": judgements.large,
}
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects tags and text; `mismatches` names every tag that does not balance."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.mismatches: list[str] = []
        self.pieces: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mismatches.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.pieces.append(data)


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[Judgement, str, Page]]:
    made = {name: build() for name, build in BUILDERS.items()}
    sources = {name: report_html(judgement) for name, judgement in made.items()}
    return {name: (made[name], source, Page(source)) for name, source in sources.items()}


def strings(value: object) -> Iterator[str]:
    """Every string that a judgement holds."""
    if dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            if entry.name not in ("reference_arm", "moment"):  # arms stand there by pairs, moments in words
                yield from strings(getattr(value, entry.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            if len(value) > 1:  # one value for all ranks: their numbers are left out
                yield from strings(item)
    elif isinstance(value, str):
        yield str(value)


@pytest.mark.parametrize("name", BUILDERS)
class TestEveryPage:
    def test_tags_balance(self, pages: dict, name: str) -> None:
        page = pages[name][2]
        assert page.mismatches == []
        assert page.open == []

    def test_holds_every_fact_as_text(self, pages: dict, name: str) -> None:
        judgement, _, page = pages[name]
        unused = {"kind", "name"}  # shown joined, as kind:name
        missing = [text for text in strings(judgement) if one_line(text) not in page.text]
        assert [text for text in missing if text not in unused and text] == []

    def test_needs_no_network_and_no_script(self, pages: dict, name: str) -> None:
        _, source, page = pages[name]
        assert "://" not in source
        assert "@import" not in source
        assert not {tag for tag, _ in page.tags} & {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "form",
            "base",
        }
        for tag, attributes in page.tags:
            assert not [key for key in attributes if key.startswith("on") or key in ("src", "action")], tag
            assert (attributes.get("href") or "#").startswith("#"), tag

    def test_ids_are_unique_and_every_reference_has_its_target(self, pages: dict, name: str) -> None:
        _, source, page = pages[name]
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        referenced = set(re.findall(r"url\(#([^)]+)\)", source))
        for _, attributes in page.tags:
            referenced |= {attributes[key] for key in ("aria-labelledby",) if key in attributes}
            referenced |= {attributes["href"][1:]} if "href" in attributes else set()
        assert referenced <= set(ids)

    def test_every_table_has_a_caption_and_scoped_headers(self, pages: dict, name: str) -> None:
        tags = pages[name][2].tags
        assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
        assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")

    def test_verdict_headline_scope_and_gates_come_first_in_that_order(self, pages: dict, name: str) -> None:
        judgement, _, page = pages[name]
        found = [page.text.index(one_line(part)) for part in (judgement.headline, judgement.scope)]
        gates = page.text.index("Each gate is one question")
        assert page.text.index(judgement.verdict) < found[0] < found[1] < gates

    def test_holds_no_character_that_cannot_be_seen(self, pages: dict, name: str) -> None:
        source = pages[name][1]
        assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", source) == []


@pytest.mark.parametrize("name", ["fail", "invalid", "inconclusive", "hostile", "cheap"])
def test_the_same_judgement_gives_the_same_bytes(pages: dict, name: str) -> None:
    assert report_html(BUILDERS[name]()) == pages[name][1]


def test_hostile_text_stays_text(pages: dict) -> None:
    _, source, page = pages["hostile"]
    assert "<script>alert(1)</script>" in page.text
    assert "<script" not in source
    assert "49" not in page.text.split("Scope")[0]  # {{ 7*7 }} is not evaluated
    assert source.count("</style>") == 1


def test_a_verdict_is_a_word_and_a_shape_not_only_a_colour(pages: dict) -> None:
    shapes = set()
    for name in judgements.ALL:
        source = pages[name][1]
        chips = re.findall(r'class="chip ([a-z]+)">(<svg.*?</svg>)([a-z]+)<', source, flags=re.DOTALL)
        assert chips
        assert all(kind == word for kind, _, word in chips)
        shapes |= {icon for kind, icon, _ in chips if kind == name}
    assert len(shapes) == len(judgements.ALL)


def test_a_planted_fault_that_was_found_is_not_listed_as_a_divergence(pages: dict) -> None:
    text = pages["pass"][2].text
    assert "Expected differences" in text
    assert "differs, planted" in text
    assert 'id="divergence"' not in pages["pass"][1]
    assert 'class="chip fail"' not in pages["pass"][1]


def test_a_divergence_names_the_origin_with_its_evidence_above_the_rank_rows(pages: dict) -> None:
    text = pages["fail"][2].text
    origin = text.index("rank 17 on gpu-node-002")
    assert origin < text.index("63 differing ranks, one by one")
    assert "118 of 412 records in this block differ" in text
    assert "0-16, 18-62 62 receiver" in text


def test_deviations_give_pin_both_values_and_ranks(pages: dict) -> None:
    assert "runtime.torch threads 1 2 0-39, 63" in pages["invalid"][2].text
    assert 'id="deviations"' not in pages["pass"][1]


def test_nodes_and_job_of_each_arm_stand_in_its_row(pages: dict) -> None:
    assert "gpu-node-000 job 4711 2 1-12" in pages["pass"][2].text


def test_the_pins_of_many_nodes_start_closed() -> None:
    values = {f"n{number}": str(number) for number in range(608)}
    row = dataclasses.replace(judgements.pins()[-1], pin="placement.node", values=values)
    source = report_html(judgements.passing(pins=(row,), curves=()))
    assert re.search(r"<details class=\"inner\">\s*<summary>placement", source)


def test_a_gap_in_a_curve_is_said_in_words(pages: dict) -> None:
    expected = "0 ULPs apart at 9 of 12 steps; no distance at steps 4-5, 9: a side is missing or not finite"
    assert expected in pages["inconclusive"][2].text


def test_a_page_of_the_smoke_recipe_stays_small(pages: dict) -> None:
    assert len(pages["pass"][1].encode()) < 500_000


def test_a_skipped_record_never_rounds_to_all_records() -> None:
    scope = dataclasses.replace(judgements.scope(), skipped=1, share=0.9999999)
    gate = judgements.gate("repeatability", "pass", "Equal.", judgements.comparison(scope=scope))
    text = Page(report_html(judgements.passing(gates=(gate,), curves=()))).text
    assert "1 skipped (99.99 % fingerprinted)" in text


def test_a_judgement_without_anything_is_still_a_page() -> None:
    empty = judgements.inconclusive()
    empty = dataclasses.replace(empty, gates=(), arms=(), curves=(), pins=(), recipe_text="", headline="", scope="")
    page = Page(report_html(empty))
    assert page.mismatches == []
    assert "No gate was judged." in page.text


def luminance(colour: str) -> float:
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, 1.4.3."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_reach_contrast_aa(dark: bool) -> None:
    css = (Path(html.__file__).parent / "templates" / "report.css").read_text()
    part = css.partition("prefers-color-scheme: dark")[2 if dark else 0].partition("* {")[0]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part))
    for ink in ("ink", "soft", "fail"):
        for back in ("page", "card", "code"):
            assert contrast(colours[ink], colours[back]) >= 4.5, (ink, back)
    for verdict in judgements.ALL:
        assert contrast(colours[verdict], colours[f"{verdict}-back"]) >= 4.5, verdict
        assert contrast(colours["ink"], colours[f"{verdict}-back"]) >= 4.5, verdict
    for line in ("plot-reference", "plot-candidate", "plot-ulps", "plot-limit"):
        assert contrast(colours[line], colours["card"]) >= 3, line


def test_presenters_import_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, judgements; from samebits.report import terminal, html\n"
        "html.report_html(judgements.inconclusive())\n"
        "html.report_html(judgements.cheap())\n"
        "print([name for name in ('torch', 'megatron', 'matplotlib.pyplot') if name in sys.modules])"
    )
    paths = [str(Path(__file__).parents[1]), str(Path(html.__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
