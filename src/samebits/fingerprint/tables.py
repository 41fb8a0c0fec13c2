"""The tables of a fingerprint file: the sites and forms that its records name by number."""

from __future__ import annotations

import json
from collections.abc import Sequence

from samebits.fingerprint.block import BlockSums
from samebits.fingerprint.records import Form, Kind, Phase, Site, form_hash, site_hash


def encode(sites: Sequence[Site], forms: Sequence[Form]) -> bytes:
    """Payload of a TABLES frame."""
    body = {
        "sites": [[site.phase, site.kind, site.name, site.scope] for site in sites],
        "forms": [[form.dtype, list(form.shape)] for form in forms],
    }
    return json.dumps(body).encode()


class Tables:
    """Filled frame by frame, built when asked for: who compares chains never needs them, who checks records needs
    the hashes only."""

    def __init__(self) -> None:
        self._site_rows: list[tuple[str, str, str, str]] = []
        self._form_rows: list[tuple[str, tuple[int, ...]]] = []
        self._known: set[tuple[object, ...]] = set()
        self._sites: list[Site] = []
        self._forms: list[Form] = []
        self._sums = BlockSums()
        self._summed = (0, 0)

    def add(self, payload: bytes) -> None:
        """payload: of a TABLES frame. Raises ValueError, TypeError or KeyError where it is none."""
        body = json.loads(payload)
        sites = [(phase, kind, name, scope) for phase, kind, name, scope in body["sites"]]
        forms = [(dtype, tuple(shape)) for dtype, shape in body["forms"]]
        unknown = ({row[0] for row in sites} - _PHASES.keys()) | ({row[1] for row in sites} - _KINDS.keys())
        if unknown:
            raise ValueError(f"unknown phase or kind {min(unknown)!r}")
        self._known |= {*sites, *forms}
        self._site_rows += sites
        self._form_rows += forms
        if len(self._known) != len(self._site_rows) + len(self._form_rows):
            raise ValueError("a site or form has two numbers")

    @property
    def sites(self) -> list[Site]:
        """In the order of their numbers."""
        for phase, kind, name, scope in self._site_rows[len(self._sites) :]:
            self._sites.append(Site(_PHASES[phase], _KINDS[kind], name, scope))
        return self._sites

    @property
    def forms(self) -> list[Form]:
        """In the order of their numbers."""
        self._forms += [Form(dtype, shape) for dtype, shape in self._form_rows[len(self._forms) :]]
        return self._forms

    @property
    def sums(self) -> BlockSums:
        """Knows all entries so far."""
        sites, forms = self._summed
        if (len(self._site_rows), len(self._form_rows)) != self._summed:
            self._sums.extend(
                (site_hash(*row) for row in self._site_rows[sites:]),
                (form_hash(*row) for row in self._form_rows[forms:]),
            )
            self._summed = len(self._site_rows), len(self._form_rows)
        return self._sums


_PHASES = {str(phase): phase for phase in Phase}
_KINDS = {str(kind): kind for kind in Kind}
