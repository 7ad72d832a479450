"""A codec of a user's own carries fragments as a built-in one does, or is refused first."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from archipelago.lab.checks.replay import replay
from cluster.config.load import load, parse
from cluster.config.schema import Config
from cluster.launch.ray_cluster import Stores
from cluster.shard.own_code import own_problems
from cluster.shard.own_sources import source_problems, with_sources
from cluster.source import target_sha256, user_sha256
from coordinator.codec import Wire
from coordinator.errors import CorruptPayload, UserMistake
from coordinator.fragments import Leaf, cut
from islands.encoder import OnHost
from islands.own_wire import OwnWire
from islands.own_wire_checks import wire_problems
from tests import own_codecs
from tests.cluster.played import CONFIG, LAYOUT, Played
from tests.own_codecs import HERE

TABLES: dict[str, Any] = {
    "task": {"preset": "byte-tiny"},
    "islands": [{"group": "a", "count": 2}],
}


def wire(codec: str, **options: float) -> OwnWire:
    return OwnWire(f"{HERE}:{codec}", tuple(options.items()))


def config_of(*overrides: str, **tables: Any) -> Config:
    return parse(TABLES | tables, origin="test", overrides=overrides)


@pytest.mark.parametrize("codec", ["halves", "Halves", "Exact", "Signs"])
def test_sound_codecs_are_accepted(codec: str) -> None:
    assert wire_problems(wire(codec), (777, 1 << 20)) == []


UNSOUND: dict[str, tuple[str, str]] = {
    "WithoutDecode": ("WithoutDecode", "is WithoutDecode, which has no decode"),
    "OtherLength": (
        "encode",
        r"encode returns uint8\[3\] for 1 elements, and bytes_of gives uint8",
    ),
    "OfValues": ("encode", r"encode returns uint8\[0\] for 1 elements"),
    "OtherType": ("encode", r"decode returns float64\[1\], and it must return float32\[1\]"),
    "OtherShape": ("encode", r"decode returns float32\[1\], and it must return float32\[2\]"),
    "Rounded": ("encode", "encode is not deterministic: its bytes differ between two calls"),
    "Forgets": ("encode", "error feedback needs an error that is smaller than the values"),
    "Doubles": ("encode", "error feedback needs an error that is smaller than the values"),
    "MovesZeros": ("encode", r"error feedback .* for 1 element of zeros the error has the norm"),
    "Breaks": ("raise", r"encode raises RuntimeError: not today \(in encode\)"),
    "Fraction": ("encode", r"bytes_of\(1\) returns 2.5, not a count"),
    "Infinite": ("encode", "decode returns what is not finite for 1 element of normal"),
}


@pytest.mark.parametrize("codec", UNSOUND)
def test_unsound_codec_is_refused_with_its_line_first(codec: str) -> None:
    inside, why = UNSOUND[codec]
    (found,) = wire_problems(wire(codec), LAYOUT.sizes)
    assert re.search(why, found), found
    if codec == "WithoutDecode":  # a class without a constructor has no line
        return
    place = re.match(r"(.+):(\d+): sync\.wire_up/wire_down = ", found)
    assert place is not None, found
    assert place[1] == own_codecs.__file__
    line = Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
    assert inside in line


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (f"{HERE}:HERE", "is str, not an object with encode"),
        (f"{HERE}:nobody", "has no nobody"),
        ("nowhere:codec", "no module 'nowhere'"),
    ],
)
def test_target_that_is_no_codec_is_refused(target: str, why: str) -> None:
    (found,) = own_problems(config_of(f"sync.wire_down={target}"), LAYOUT)
    assert why in found


def test_options_reach_the_codec_and_unknown_ones_are_refused() -> None:
    config = config_of(f"sync.wire_up={HERE}:Signs", "sync.wire_options.scale=0.5")
    assert config.sync.wire_up == wire("Signs", scale=0.5)
    ones = np.ones(8, np.float32)
    assert wire("Signs", scale=0.5).decode(wire("Signs", scale=0.5).encode(ones), 8)[0] == 0.5
    wrong = config_of(f"sync.wire_up={HERE}:Signs", "sync.wire_options.scal=0.5")
    assert "did you mean scale?" in own_problems(wrong, LAYOUT)[0]
    wrong = config_of(f"sync.wire_up={HERE}:halves", "sync.wire_options.scale=0.5")
    assert "takes no sync.wire_options" in own_problems(wrong, LAYOUT)[0]


def test_configuration_is_written_and_read_back(tmp_path: Path) -> None:
    config = config_of(
        f"sync.wire_up={HERE}:Signs", "sync.wire_down=int4", "sync.wire_options.scale=0.5"
    )
    (again := tmp_path / "again.toml").write_text(config.toml())
    assert load(again) == config
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert config.sync.wire_down is Wire.INT4
    assert Stores.of(config, LAYOUT).shards > 0


def test_codec_that_does_not_fit_the_run_is_refused() -> None:
    own = f"sync.wire_up={HERE}:halves"
    for key in ("wire_options.scale=0.5", f"wire_sha256={'0' * 16}"):
        with pytest.raises(UserMistake, match="is of a codec of your own"):
            config_of(f"sync.{key}")
    with pytest.raises(UserMistake, match=r'islands\.0\.encode: "device" is not for the codec'):
        config_of(own, "islands.a.encode=device")
    with pytest.raises(UserMistake, match=r"islands\.0\.hosts: each of 2 hosts has a part"):
        config_of(own, "islands.a.hosts=2")
    with pytest.raises(UserMistake, match=r'are sent as "f32" or "bf16", given "tests\.own_codecs'):
        config_of(own, "run.mode=data-parallel")


# --- what a codec sees, and what becomes of its errors --------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_arrive_as_such(bad: float) -> None:
    """The codec never sees them: `Signs` would make finite numbers of them."""
    values = np.ones(100, np.float32)
    values[7] = bad
    payload = wire("Signs").encode(values)
    assert payload.size == wire("Signs").bytes_of(100) == 1 + 4 + 13
    assert np.isnan(wire("Signs").decode(payload, 100)).all()


def test_payloads_of_another_wire_are_corrupt() -> None:
    for payload in (np.zeros(17, np.uint8), np.zeros(18, np.int8), np.full(18, 2, np.uint8)):
        with pytest.raises(CorruptPayload):
            wire("Signs").decode(payload, 100)


def test_errors_are_fed_back_until_everything_has_arrived() -> None:
    """The sum of what arrives follows the sum of what was sent, although a message has one bit."""
    encode, own = OnHost(wire("Signs")), wire("Signs")
    delta = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    arrived, left = np.zeros(500, np.float32), None
    origin, rounds = np.zeros(500, np.float32), 300
    for _ in range(rounds):
        payload, left = encode(jnp.asarray(delta), origin, left, 1.0, 500)
        arrived += own.decode(payload, 500)
    assert np.linalg.norm(arrived / rounds - delta) < 0.1 * np.linalg.norm(delta)


# --- whole runs -----------------------------------------------------------------------------------


SOURCE = inspect.getsource(own_codecs.Halves).replace("class Halves", "class Mine")
MODULE = f"import numpy as np\n\nFloats = Bytes = object\n\n{SOURCE}"


def test_run_is_replayed_to_the_last_bit_and_by_this_codec_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "code").mkdir()
    (file := folder / "codec_of_replay.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    own = 'wire_up = "codec_of_replay:Mine"\nwire_down = "codec_of_replay:Mine"'
    (plain := tmp_path / "plain.toml").write_text(CONFIG.replace("[sync]", f"[sync]\n{own}"))
    config = with_sources(load(plain))
    assert config.sync.wire_sha256 == user_sha256("codec_of_replay:Mine")
    run_dir = tmp_path / "run"
    Played(run_dir, config.toml()).to_the_end(24)
    result = replay(run_dir)
    assert result["exact"] is True
    assert result["compared"] == {"effects": True, "state": True, "fragments": True, "tokens": True}
    file.write_text(MODULE.replace("6e4", "5e4"))
    user_sha256.cache_clear()
    target_sha256.cache_clear()
    assert source_problems(load(run_dir / "config.toml"))
    with pytest.raises(UserMistake, match=r"wire_up = .* its source is \w+, and sync.wire_sha256"):
        replay(run_dir)


def test_state_goes_in_f32_beside_the_codec() -> None:
    layout = cut([Leaf("w", (40,)), Leaf("mean", (3,), state=True)], 2)
    config = config_of(f"sync.wire_up={HERE}:Signs", f"sync.wire_down={HERE}:Signs")
    assert own_problems(config, layout) == []
