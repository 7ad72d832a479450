"""Tests of the seats of a run by name, and of a fleet's memory that is made from them."""

from __future__ import annotations

from cluster.fleet.named_seats import seats_among
from cluster.fleet.takeover import memory_of, with_unlisted
from cluster.names import Seat, island_actor, namespace_of, seat_of_actor, spare_group
from coordinator.protocol import Island
from tests.cluster.test_controller import config_of

RUN = namespace_of("run")


def test_seats_are_found_by_the_names_of_actors_and_placement_groups() -> None:
    names = ["fleet", "syncer", "shard-0", "island eu-west-0", "island eu+0", "island eu-1 ab12/1"]
    actors = [{"namespace": RUN, "name": name} for name in names]
    actors.append({"namespace": f"{RUN}-2", "name": "island eu-7"})
    groups = {
        1: {"name": f"{RUN}/eu-west-0", "state": "CREATED"},
        2: {"name": f"{RUN}/eu-2", "state": "PENDING"},
        3: {"name": f"{RUN}/eu-3", "state": "REMOVED"},
        4: {"name": f"{RUN}-2/eu-4", "state": "CREATED"},
        5: {"name": "", "state": "CREATED"},
    }
    assert seats_among(RUN, actors, groups) == ["eu+0", "eu-2", "eu-west-0"]


def test_name_of_a_seats_actor_gives_the_seat() -> None:
    for seat in map(Seat, ("eu-0", "eu-west-3", "eu+11")):
        assert seat_of_actor(island_actor(seat)) == seat
    assert [spare_group(Seat(each)) for each in ("eu-west+1", "eu-west-1")] == ["eu-west", None]


def test_memory_keeps_all_configured_islands_and_others_that_are_there() -> None:
    plan = [{"kind": "kill", "island": "eu-0", "at_step": step} for step in (1, 9)]
    config = config_of(2, faults={"plan": plan})
    seats = [Seat(each) for each in ("eu+0", "eu-1", "eu-7", "evaluator", "us-0", "us+1")]
    kept = memory_of(config, seats, 3.0)
    assert kept["desired"] == ["eu-0", "eu-1", "eu-7"]
    assert kept["held"] == {"eu-1": "eu-1", "eu-7": "eu-7"}
    assert kept["spares"] == {"eu+0": "eu"}
    assert (kept["faults"], kept["began"], kept["outcome"]) == ([0, 1], 3.0, None)


def test_seats_that_were_not_written_down_are_added_to_a_memory() -> None:
    """An island that has moved to a spare's seat keeps it; its own seat is a spare then."""
    config = config_of(3)
    kept = memory_of(config, [Seat("eu-0")], 3.0)
    kept["held"][Island("eu-0")] = Seat("eu+0")
    seats = [Seat(each) for each in ("eu+0", "eu+1", "eu-0", "eu-1", "eu-9", "evaluator")]
    found = with_unlisted(kept, config, seats)
    assert found["held"] == {"eu-0": "eu+0", "eu-1": "eu-1", "eu-9": "eu-9"}
    assert found["spares"] == {"eu+1": "eu", "eu-0": "eu"}
    assert found["desired"] == kept["desired"] == ["eu-0", "eu-1", "eu-2"]
    assert with_unlisted(found, config, seats) == found
