"""Rules that name the cause of a traced difference, and refuse to name what cannot be it.

The first record of a rank that differs is where its bits part. It is named, unless it cannot have done it: then the
call around it is, or nothing is and a suspect is told (what upstream calls one hop later: a view, a copy or a sum of
pairs with equal inputs only shows what something unseen did to its bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samebits.compare import op_traits
from samebits.compare.cross_rank import DifferenceSource, Link
from samebits.compare.records import Item
from samebits.compare.results import Symptom
from samebits.compare.traced_block import Arm, Trail
from samebits.fingerprint.records import OVERWRITTEN, Kind, Site


@dataclass(frozen=True)
class Named:
    """What is named on one rank.

    site: of the record that is blamed; None: nothing can be. occurrence: which one. row: where it stands, in the arm
    that `only` names, else in the reference. only: the arm that alone has it. why: half a sentence. refused: what was
    not named though it differs first, and why; or empty. suspect: what may have done it where nothing is named.
    """

    symptom: Symptom
    why: str
    site: Site | None
    occurrence: int = 0
    row: int | None = None
    only: Arm | None = None
    refused: str = ""
    suspect: Site | None = None


@dataclass(frozen=True)
class _Case:
    trail: Trail
    item: Item
    link: Link

    @property
    def site(self) -> Site:
        return self.item.site

    def itself(self, symptom: Symptom, why: str) -> Named:
        only: Arm | None = "reference" if self.item.candidate is None else None
        only = "candidate" if self.item.reference is None else only
        return Named(symptom, why, self.site, self.item.occurrence, self.trail.at(self.item)[1], only)


def name(trail: Trail, item: Item, link: Link) -> Named:
    """Name the cause of a rank's first difference. The first rule that fits decides.

    item: of a traced kind.
    """
    case = _Case(trail, item, link)
    return next(found for rule in _RULES if (found := rule(case)))


def _call_around(case: _Case) -> Named | None:
    """Name the call around the item, where its inputs are equal and other steps were taken inside. Of nested calls, the
    outermost whose inputs are equal. Bytes that somebody else may have left before it began are no step of its own."""
    parted = case.item.lone or not case.item.same_form or case.item.same_input is False
    if not parted or case.site.kind is Kind.GIVEN:
        return None
    named, (scope, slash, call) = None, case.site.scope.rpartition("/")
    while slash:
        if found := _enclosing(case, call, scope):
            occurrence, row = found
            why = f"its inputs are equal, what it does inside is not{_kept(call)}"
            site = case.trail.reference.site(row)
            named = Named(Symptom.KERNEL, why, site, occurrence, row, refused=f"{case.site.name}, inside it")
        scope, slash, call = scope.rpartition("/")
    return named


def _kept(call: str) -> str:
    """Return a caveat: what an autograd function kept for its backward pass, beside tensors, is not recorded."""
    return ", or what its forward pass kept" if call.endswith(".backward") else ""


def _enclosing(case: _Case, call: str, scope: str) -> tuple[int, int] | None:
    """Return (occurrence, row) of the record that a call left at its end, where its inputs are known to be equal."""
    before = sum(1 for site in case.trail.sites_before(case.item) if _is(site, call, scope))
    found = case.trail.nth(Kind.CALL, call, scope, before)
    return (before, found.reference) if found.reference is not None and found.same_input else None


def _is(site: Site, call: str, scope: str) -> bool:
    return (site.kind, site.name, site.scope) == (Kind.CALL, call, scope)


def _control_flow(case: _Case) -> Named | None:
    if case.item.lone and case.site.kind is Kind.GIVEN and case.site.name.startswith(OVERWRITTEN):
        return None
    if case.item.lone:
        return case.itself(Symptom.CONTROL_FLOW, "the arms did not do the same things")
    if not case.item.same_form:
        return case.itself(Symptom.CONTROL_FLOW, "its dtype or shape is another one, or one arm skipped its bytes")
    return None


def _shifted(case: _Case) -> Named | None:
    """Name a record that only one arm has: its next one of that kind equals this one of the other arm."""
    if case.item.same_input is not False or not (only := case.trail.surplus(case.item)):
        return None
    row = case.item.reference if only == "reference" else case.item.candidate
    why = f"only the {only} did it; behind it both go on alike"
    return Named(Symptom.CONTROL_FLOW, why, case.site, case.item.occurrence, row, only)


def _other_inputs(case: _Case) -> Named | None:
    """Name an operation whose inputs differ: all records before it are equal, so no seen tensor brought it."""
    if case.item.same_input is not False:
        return None
    if case.site.kind is Kind.OP:
        return case.itself(Symptom.CONTROL_FLOW, "what it was called with is another; all records before it are equal")
    return case.itself(Symptom.KERNEL, "its inputs differ already, and what made them was not recorded at this rung")


def _given(case: _Case) -> Named | None:
    if case.site.kind is not Kind.GIVEN:
        return None
    return case.itself(Symptom.KERNEL, "something that the dispatcher does not see left other bytes there")


def _shared(case: _Case) -> Named | None:
    if case.site.kind is Kind.COLLECTIVE:
        why = "what every member put in is equal, what came out is not"
        if case.link.source is DifferenceSource.UNSEEN:
            why = "what this rank put in is equal; what others put in was not, or not all, traced"
        return case.itself(Symptom.COLLECTIVE, why)
    if case.site.kind is Kind.RECEIVE:
        why = "what was sent is equal, what was received is not"
        if case.link.source is DifferenceSource.UNSEEN:
            why = "the sender was not traced"
        return case.itself(Symptom.COLLECTIVE, why)
    return None


def _random(case: _Case) -> Named | None:
    if case.site.kind is not Kind.OP or not op_traits.is_random(case.site.name):
        return None
    return case.itself(Symptom.RNG, "it drew from a stream that stands elsewhere, its other inputs are equal")


def _partial(case: _Case) -> Named | None:
    if not case.trail.is_partial(case.item) or not case.item.same_input:
        return None
    refused = f"{case.site.name}: an input is larger than capture.max_tensor_bytes, so that it may have differed"
    return Named(Symptom.KERNEL, "what differs first read bytes that were not looked at", None, refused=refused)


def _fixed(case: _Case) -> Named | None:
    """Refuse an operation that cannot give two results: something else changed its bytes while it ran."""
    if case.site.kind is not Kind.OP or not op_traits.is_fixed(case.site.name):
        return None
    able = (site for site in case.trail.sites_before(case.item) if not _cannot(site))
    return Named(
        Symptom.HARDWARE_SUSPICION,
        "something wrote there unseen meanwhile (a buffer in flight, another stream), or the hardware did",
        None,
        refused=f"{case.site.name} cannot give two results for equal inputs",
        suspect=next(able, None),
    )


def _cannot(site: Site) -> bool:
    return site.kind is Kind.OP and op_traits.is_fixed(site.name)


def _computes(case: _Case) -> Named:
    if case.site.kind in (Kind.OP, Kind.CALL):
        return case.itself(Symptom.KERNEL, "its inputs are equal, its output is not")
    if any(site.kind is Kind.OP for site in case.trail.sites_before(case.item)):
        return case.itself(
            Symptom.KERNEL, "no operation in it differs: something that the dispatcher does not see did it"
        )
    return case.itself(Symptom.KERNEL, "nothing recorded before it differs; rung op names the operation")


_RULES: tuple[Callable[[_Case], Named | None], ...] = (
    _call_around,
    _control_flow,
    _shifted,
    _other_inputs,
    _partial,
    _shared,
    _given,
    _random,
    _fixed,
    _computes,
)
