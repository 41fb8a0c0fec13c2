"""What the ranks of one artifact must have alike: each invariant holds where nothing is wrong, and breaks at the place
where something is."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from test_cli import call

import evidence
import layered
from artifacts import At, Change, altered, dropped, repeated, skipped
from entries import Entry
from samebits.checks import invariants
from samebits.checks.check import check
from samebits.checks.invariants import Check, Invariant
from samebits.compare.results import to_json
from samebits.fingerprint.paths import Artifact
from samebits.fingerprint.records import Moment
from samebits.report import terminal

STEP = 2
ALL = {
    *("replicas", "tensor-replicas", "tied-embeddings", "all-reduce", "all-gather", "broadcast", "messages"),
    *("recompute", "random-streams-equal", "random-streams-apart", "batches", "samples"),
}


def on(item: str, *ranks: int) -> list[Change]:
    """The same flipped bit on each of these ranks, at one step."""
    return [altered(item, rank=rank, step=STEP) for rank in ranks]


def same_as(item: str, other: int, *ranks: int) -> Change:
    """These ranks have what another rank has."""

    def change(at: At, entries: list[Entry]) -> list[Entry]:
        if at.rank not in ranks or at.step != STEP or at.moment is not Moment.STEP:
            return entries
        theirs = iter(
            [entry for entry in layered.contents(dataclasses.replace(at, rank=other), []) if entry.item == item]
        )
        return [next(theirs) if entry.item == item else entry for entry in entries]

    return change


def found(checked: Check) -> dict[str, Invariant]:
    assert checked.problem is None
    return {invariant.name: invariant for invariant in checked.invariants}


def broken(checked: Check) -> dict[str, list[tuple[str, int, str]]]:
    return {
        name: [(breach.ranks, breach.step, breach.item) for breach in invariant.violated]
        for name, invariant in found(checked).items()
        if invariant.violations
    }


def test_every_invariant_is_checked_and_holds_where_nothing_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check(layered.written(tmp_path / "a", monkeypatch, notes=[]))
    assert (checked.verdict, broken(checked)) == ("pass", {})
    assert {name: invariant.checked > 0 for name, invariant in found(checked).items()} == dict.fromkeys(ALL, True)
    counts = {name: invariant.checked for name, invariant in found(checked).items()}
    blocks, steps = layered.STEPS + 1, layered.STEPS
    assert counts["replicas"] == blocks * 4 * 3  # pairs of replicas, by their common parameters; experts have none
    assert counts["tensor-replicas"] == blocks * 4
    assert counts["all-reduce"] == counts["broadcast"] == steps * 4 * 2
    assert counts["messages"] == steps * 4 * 2
    assert counts["recompute"] == steps * 8 * 2
    assert counts["batches"] == steps * (8 - 2)


@pytest.mark.parametrize(
    ("changes", "invariant", "places"),
    [
        (on("parameter:linear.weight", 2), "replicas", [("0, 2", STEP, "parameter:linear.weight")]),
        (
            [dropped("parameter:linear.weight", rank=2, step=STEP)],
            "replicas",
            [("0, 2", STEP, "parameter:linear.weight")],
        ),
        (
            on("parameter:norm.weight", 1, 3),
            "tensor-replicas",
            [("0-1", STEP, "parameter:norm.weight"), ("2-3", STEP, "parameter:norm.weight")],
        ),
        (
            on("parameter:output_layer.weight", 4, 6),
            "tied-embeddings",
            [
                ("0, 4", STEP, "embedding.weight and output_layer.weight"),
                ("2, 6", STEP, "embedding.weight and output_layer.weight"),
            ],
        ),
        (on("collective:all_reduce", 1), "all-reduce", [("0-1", STEP, "all_reduce [ranks 0-1], call 0")]),
        (on("collective:broadcast", 6), "broadcast", [("6-7", STEP, "broadcast [ranks 6-7], call 0")]),
        (
            [altered("collective:all_gather_into_tensor", rank=5, step=STEP, occurrence=1)],
            "all-gather",
            [("4-5", STEP, "all_gather_into_tensor [ranks 4-5], call 1")],
        ),
        (
            [dropped("collective:broadcast", rank=3, step=STEP)],
            "broadcast",
            [("3", STEP, "broadcast [ranks 2-3]")],
        ),
        (
            [repeated("collective:broadcast", rank=3, step=STEP)],
            "broadcast",
            [("2-3", STEP, "broadcast [ranks 2-3]")],
        ),
        (on("receive:recv", 5), "messages", [("1, 5", STEP, "messages from 1 to 5")]),
        ([dropped("receive:recv", rank=5, step=STEP)], "messages", [("1, 5", STEP, "messages from 1 to 5")]),
        ([dropped("send:send", rank=1, step=STEP)], "messages", [("1, 5", STEP, "messages from 1 to 5")]),
        (on("recompute:layer", 7), "recompute", [("7", STEP, "recompute:layer, time 0")]),
        (on("rng:torch", 1), "random-streams-equal", [("0-1", STEP, "rng:torch")]),
        (
            [same_as("rng:megatron/model-parallel-rng", 0, 1)],
            "random-streams-apart",
            [("0-1", STEP, "rng:megatron/model-parallel-rng")],
        ),
        (
            [same_as("rng:megatron/expert-parallel-rng", 0, 2)],
            "random-streams-apart",
            [("0, 2", STEP, "rng:megatron/expert-parallel-rng")],
        ),
        (on("batch:tokens", 1), "batches", [("0-1", STEP, "batch:tokens")]),
    ],
)
def test_what_is_changed_on_one_rank_breaks_its_invariant_there_and_no_other(
    changes: list[Change],
    invariant: str,
    places: list[tuple[str, int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = check(layered.written(tmp_path / "a", monkeypatch, *changes, notes=[]))
    assert checked.verdict == "fail"
    assert broken(checked) == {invariant: places}


def test_replicas_that_read_the_same_samples_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = same_as("batch:tokens", 0, 2, 3, 6, 7)
    places = broken(check(layered.written(tmp_path / "a", monkeypatch, theirs, notes=[])))
    assert set(places) == {"samples"}
    assert set(places["samples"]) == {("0, 2", STEP, "batch:tokens")}


def test_data_that_repeat_themselves_break_nothing_by_one_common_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_of_rank_0(at: At, entries: list[Entry]) -> list[Entry]:
        """Every replica's first micro-batch, at every step."""
        one = next(
            entry for entry in layered.contents(At(0, Moment.STEP, 1, "state"), []) if entry.item == "batch:tokens"
        )
        hits = [index for index, entry in enumerate(entries) if entry.item == "batch:tokens"][:1]
        return [one if index in hits else entry for index, entry in enumerate(entries)]

    checked = check(layered.written(tmp_path / "a", monkeypatch, first_of_rank_0, notes=[]))
    assert (checked.verdict, broken(checked)) == ("pass", {})
    assert found(checked)["samples"].checked == layered.STEPS


def test_calls_that_one_rank_waits_for_in_another_order_are_the_same_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(at: At, entries: list[Entry]) -> list[Entry]:
        if at.rank != 1:
            return entries
        calls = iter([entry for entry in entries if entry.item == "collective:all_reduce"][::-1])
        return [next(calls) if entry.item == "collective:all_reduce" else entry for entry in entries]

    assert check(layered.written(tmp_path / "a", monkeypatch, later, notes=[])).verdict == "pass"


def test_what_was_still_in_flight_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [
        {"type": "in-flight", "rank": 3, "step": STEP, "name": "broadcast [ranks 2-3]", "count": 2},
        {"type": "in-flight", "rank": 5, "step": STEP, "name": "recv", "count": 2},
        {"type": "in-flight", "rank": 1, "step": STEP, "name": "all_reduce [ranks 0-1]", "count": 1},
    ]

    def last(at: At, entries: list[Entry]) -> list[Entry]:
        calls = [index for index, entry in enumerate(entries) if entry.item == "collective:all_reduce"]
        missing = calls[-1:] if (at.rank, at.step, at.moment) == (1, STEP, Moment.STEP) else []
        return [entry for index, entry in enumerate(entries) if index not in missing]

    lost = [dropped("collective:broadcast", rank=3, step=STEP), dropped("receive:recv", rank=5, step=STEP)]
    checked = check(layered.written(tmp_path / "a", monkeypatch, *lost, last, notes=notes))
    assert (checked.verdict, broken(checked)) == ("pass", {})
    assert found(checked)["all-reduce"].checked == 8 * layered.STEPS - 1
    assert found(checked)["messages"].checked == 8 * layered.STEPS - 2


def test_a_call_in_flight_hides_no_other_call_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = {"type": "in-flight", "rank": 1, "step": STEP, "name": "all_reduce [ranks 0-1]", "count": 1}

    def lost(at: At, entries: list[Entry]) -> list[Entry]:
        calls = [index for index, entry in enumerate(entries) if entry.item == "collective:all_reduce"]
        missing = calls[-1:] if (at.rank, at.step, at.moment) == (1, STEP, Moment.STEP) else []
        return [entry for index, entry in enumerate(entries) if index not in missing]

    wrong = altered("collective:all_reduce", rank=1, step=STEP)
    checked = check(layered.written(tmp_path / "a", monkeypatch, lost, wrong, notes=[note]))
    assert checked.verdict == "fail"
    assert set(broken(checked)) == {"all-reduce"}


def test_replicas_that_read_the_same_samples_in_another_order_are_named_where_data_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated_and_turned(at: At, entries: list[Entry]) -> list[Entry]:
        """Every rank reads rank 0's micro-batches of step 1, at every step; ranks of the other replica backwards."""
        plain = layered.contents(At(0, Moment.STEP, 1, "state"), [])
        read = [entry for entry in plain if entry.item == "batch:tokens"]
        turned = iter(read[::-1] if at.rank in (2, 3, 6, 7) else read)
        return [next(turned) if entry.item == "batch:tokens" else entry for entry in entries]

    places = broken(check(layered.written(tmp_path / "a", monkeypatch, repeated_and_turned, notes=[])))
    assert set(places) == {"samples"}


def test_at_rung_state_what_ranks_hand_on_is_not_checked_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_ = found(check(layered.written(tmp_path / "a", monkeypatch, rung="state", notes=[])))
    unchecked = {name: invariant.unchecked for name, invariant in found_.items() if not invariant.checked}
    traffic = {"all-reduce", "all-gather", "broadcast", "messages", "recompute"}
    assert unchecked == dict.fromkeys(traffic, "no step was recorded at rung boundary")


def test_without_notes_nothing_is_guessed_of_split_and_tied_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [*on("parameter:norm.weight", 1, 3), *on("parameter:output_layer.weight", 4, 6)]
    checked = check(layered.written(tmp_path / "a", monkeypatch, *changes))
    assert (checked.verdict, broken(checked)) == ("pass", {})
    assert "capture with this version" in found(checked)["tensor-replicas"].unchecked
    assert "capture with this version" in found(checked)["tied-embeddings"].unchecked


def test_what_was_too_large_to_be_fingerprinted_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [skipped(f"collective:{name}") for name in ("all_reduce", "broadcast", "all_gather_into_tensor")]
    found_ = found(check(layered.written(tmp_path / "a", monkeypatch, *everything, notes=[])))
    assert {name: found_[name].checked for name in ("all-reduce", "all-gather", "broadcast")} == {
        **{"all-reduce": 0, "all-gather": 0, "broadcast": 0}
    }
    assert found_["broadcast"].unchecked == "no ranks had one together"


def test_a_damaged_artifact_is_inconclusive_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = layered.written(tmp_path / "a", monkeypatch, notes=[])
    path = artifact.fingerprint(3)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    checked = check(artifact)
    assert (checked.verdict, checked.invariants) == ("inconclusive", ())
    assert checked.problem is not None
    assert "rank-00003.fp" in checked.problem
    assert check(Artifact(tmp_path / "nothing")).verdict == "inconclusive"


def test_one_rank_alone_proves_nothing(tmp_path: Path) -> None:
    checked = check(evidence.written(tmp_path / "reference", world=1))
    assert checked.problem is None
    assert checked.verdict == "inconclusive"
    assert all(invariant.unchecked for invariant in checked.invariants)


def test_the_verb_says_what_is_broken_first_and_exits_as_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = layered.written(tmp_path / "good", monkeypatch, notes=[])
    bad = layered.written(tmp_path / "bad", monkeypatch, *on("collective:all_reduce", 1), notes=[])
    said = call("check", bad.folder)
    assert said.returncode == 1
    assert "FAIL  1 invariant broken" in said.stdout
    assert "step 2, ranks 0-1: all_reduce [ranks 0-1], call 0: rank 0 has " in said.stdout
    assert said.stdout.index("step 2, ranks 0-1") < said.stdout.index("must hold")
    terminal.show(terminal.check_text(check(good)))
    assert capsys.readouterr().out.startswith("PASS  12 invariants hold, ")
    as_json = call("check", bad.folder, "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout) == json.loads(to_json(check(bad)))
    (tmp_path / "nothing").mkdir()
    assert call("check", tmp_path / "nothing").returncode == 3


def test_all_places_are_counted_and_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "SPELLED_OUT", 3)
    changes = [
        altered("collective:all_reduce", rank=rank, step=step, occurrence=occurrence)
        for step in (1, 3)
        for rank in (1, 5)
        for occurrence in (0, 1)
    ]
    checked = check(layered.written(tmp_path / "a", monkeypatch, *changes, notes=[]))
    assert found(checked)["all-reduce"].violations == 8
    assert [breach.step for breach in found(checked)["all-reduce"].violated] == [1, 1, 1]
    text = terminal.check_text(checked)
    terminal.show(text, file=(stream := io.StringIO()))
    assert "and 5 more places" in stream.getvalue()
