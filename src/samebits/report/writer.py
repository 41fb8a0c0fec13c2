"""Writes the three reports of a judgement beside each other, each whole or not at all."""

from __future__ import annotations

from pathlib import Path

from samebits.fingerprint.paths import write_whole
from samebits.gates.judgement import Judgement
from samebits.report.html import report_html
from samebits.report.json import report_json
from samebits.report.junit import junit_xml


def write(judgement: Judgement, folder: Path) -> None:
    """report.html, report.json and junit.xml; makes the folder. All are rendered before the first is written.

    Raises OSError where the folder cannot be written to.
    """
    texts = {
        "report.json": report_json(judgement),
        "junit.xml": junit_xml(judgement),
        "report.html": report_html(judgement),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode("utf-8"))
