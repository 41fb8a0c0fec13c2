"""Two processes talk over gloo while they are traced: what is recorded, when, and that nothing changes by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Found = dict[str, Any]
BOTH = "[ranks 0-1]"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    surroundings = {
        **{"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"},
        **{"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).parents[2].joinpath("collective_rank.py")),
        str(folder),
    ]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **surroundings, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def sites(found: Found) -> list[str]:
    return [site for site, _, _ in found["rows"]]


def outputs(found: Found) -> list[str]:
    return [output for _, output, _ in found["rows"]]


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        ("all_reduce", ["all_reduce"]),
        ("alias", ["all_reduce"]),
        ("all_gather", ["all_gather", "all_gather#1"]),
        ("all_gather_into_tensor", ["all_gather_into_tensor"]),
        ("reduce_scatter_tensor", ["reduce_scatter_tensor"]),
        ("reduce_scatter", ["reduce_scatter"]),
        ("all_to_all_single", ["all_to_all_single"]),
        ("broadcast", ["broadcast"]),
        ("scatter", ["scatter"]),
        ("coalesced", ["all_reduce", "all_reduce"]),
        ("coalesced_later", ["all_reduce", "all_reduce"]),
        ("polled", ["all_reduce"]),
    ],
)
def test_a_collective_is_recorded_by_its_name_and_ranks_with_what_it_left(
    scenario: str, names: list[str], ranks: list[Found]
) -> None:
    for rank in ranks:
        assert sites(rank[scenario]) == [f"collective:{name} {BOTH}" for name in names]
        assert outputs(rank[scenario]) == rank[scenario]["left"]
        assert rank[scenario]["wrote"] == rank[scenario]["left"]


@pytest.mark.parametrize("scenario", ["reduce", "gather"])
def test_who_gets_nothing_is_recorded_with_what_it_gave(scenario: str, ranks: list[Found]) -> None:
    giver, getter = ranks
    assert sites(giver[scenario]) == [f"collective:{scenario} {BOTH}"]
    assert outputs(giver[scenario]) == [giver[scenario]["given"]]
    assert giver[scenario]["wrote"] == []
    assert outputs(getter[scenario]) == getter[scenario]["left"]


def test_inputs_are_read_before_the_launch_and_only_where_a_rank_gives_some(ranks: list[Found]) -> None:
    for rank in ranks:
        (((_, _, ((first, _),)),)) = rank["all_reduce"]["rows"]
        assert f"{first:016x}" == rank["all_reduce"]["given"]
        assert rank["all_reduce"]["given"] not in rank["all_reduce"]["left"]
    for scenario in ("broadcast", "scatter"):
        (_, _, of_other), (_, _, of_source) = ranks[0][scenario]["rows"][0], ranks[1][scenario]["rows"][0]
        assert of_other is None
        assert len(of_source) == (1 if scenario == "broadcast" else 2)


def test_each_tensor_of_a_coalesced_call_has_its_own_input(ranks: list[Found]) -> None:
    first, second = (inputs for _, _, inputs in ranks[0]["coalesced"]["rows"])
    assert len(first) == len(second) == 1
    assert first != second


def test_what_is_traced_has_the_results_of_what_is_not(ranks: list[Found]) -> None:
    for rank in ranks:
        scenarios = {name: found for name, found in rank.items() if isinstance(found, dict) and "plain" in found}
        assert len(scenarios) == 21
        assert all(found["plain"] == found["left"] for found in scenarios.values())
        assert not any(found["aloft"] for found in scenarios.values())


def test_messages_are_recorded_with_their_other_end(ranks: list[Found]) -> None:
    for scenario in ("messages", "from_any_source"):
        sender, receiver = (rank[scenario] for rank in ranks)
        assert (sites(sender), sites(receiver)) == (["send:send [to 1]"], ["receive:recv [from 0]"])
        assert outputs(sender) == outputs(receiver) == [sender["given"]]
        assert (sender["wrote"], receiver["wrote"]) == ([], outputs(receiver))
    for number, rank in enumerate(ranks):
        assert sites(rank["batched"]) == [f"send:send [to {1 - number}]", f"receive:recv [from {1 - number}]"]
        assert outputs(rank["batched"]) == rank["batched"]["left"]


def test_both_ends_number_a_message_as_it_is_launched(ranks: list[Found]) -> None:
    sent, received = (rank["other_order"]["rows"] for rank in ranks)
    assert [row[1:] for row in received] == [row[1:] for row in sent[::-1]]
    assert sent[0][2] != sent[1][2]


def test_the_number_of_a_message_from_any_source_is_not_known(ranks: list[Found]) -> None:
    assert ranks[1]["from_any_source"]["rows"][0][2] is None


@pytest.mark.parametrize("scenario", ["objects", "unseen", "alone"])
def test_objects_own_work_and_groups_of_one_are_not_recorded(scenario: str, ranks: list[Found]) -> None:
    assert [rank[scenario]["rows"] for rank in ranks] == [[], []]


def test_what_has_no_record_explains_no_bytes(ranks: list[Found]) -> None:
    for scenario in ("alone", "unseen", "objects"):
        assert [rank[scenario]["wrote"] for rank in ranks] == [[], []]


def test_nothing_in_flight_is_read_and_a_second_wait_records_nothing(ranks: list[Found]) -> None:
    for rank in ranks:
        assert rank["late"]["early"] == 0
        assert outputs(rank["late"]) == [rank["late"]["there"]]
        assert rank["late"]["left"] == {}


def test_what_nobody_waited_for_is_counted_and_never_recorded(ranks: list[Found]) -> None:
    for rank in ranks:
        assert rank["forgotten"] == {"rows": [], "left": {f"all_reduce {BOTH}": 1}}


def test_everything_is_put_back_as_it_was(ranks: list[Found]) -> None:
    assert [rank["restored"] for rank in ranks] == [[True] * 4] * 2
