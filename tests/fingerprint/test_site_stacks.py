"""The notes that hold from where the program came to each site."""

from __future__ import annotations

import pytest

from samebits.fingerprint.records import Kind, Phase, Site
from samebits.fingerprint.stacks import Frame, Stacks, read_stacks, stack_of

INNER, OUTER = Frame("model/layer.py", 12, "Layer.forward"), Frame("train.py", 3, "<module>")


def site(name: str, phase: Phase = Phase.FORWARD) -> Site:
    return Site(phase, Kind.OP, name, "layer")


def test_stacks_come_back_as_they_went_step_by_step() -> None:
    stacks = Stacks()
    stacks.add(site("mm"), [INNER, OUTER])
    notes = [*stacks.notes()]
    stacks.share(site("mm", Phase.BACKWARD), site("mm"))
    stacks.add(site("add"), [OUTER])
    notes += stacks.notes()
    assert [*stacks.notes()] == []
    assert read_stacks([{"type": "planted"}, *notes]) == {
        site("mm"): (INNER, OUTER),
        site("mm", Phase.BACKWARD): (INNER, OUTER),
        site("add"): (OUTER,),
    }


def test_a_further_output_has_the_stack_of_the_first_and_an_unknown_site_none() -> None:
    stacks = {site("mm"): (INNER,)}
    assert stack_of(stacks, site("mm#12")) == (INNER,)
    assert stack_of(stacks, site("add")) == ()


@pytest.mark.parametrize("data", ["", "eJwDAAAAAAE=", "bm90IHpsaWI="])
def test_a_note_that_is_none_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="a note of stacks cannot be read"):
        read_stacks([{"type": "stacks", "data": data}])
