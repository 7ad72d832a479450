"""The description of a network of regions, and the file that its processes share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from cluster.storage.files import write_json
from coordinator.errors import UserMistake

FOLDER = Path("/run/archipelago-wan")
"""The folder with one folder for each network that is up."""
FILE = "network.json"
MARK = "ARCHIPELAGO_WAN"
"""An environment variable of every process of a network; its value is the network's name."""
LONGEST_NAME = 8
"""Characters of a name: Linux allows 15 for a network device, and ours add up to 4."""
NAME = re.compile(rf"[a-z][a-z0-9]{{0,{LONGEST_NAME - 1}}}")
MOST_REGIONS = 200
HOST = 255
"""The number of the subnet of the machine itself, which has no limit and no latency."""


@dataclass(frozen=True, slots=True)
class WanRegion:
    """A region: one network namespace, joined to the backbone by one link."""

    name: str
    number: int
    """A number from 0; region 0 has the head of the Ray cluster."""
    gbit: float
    """Bandwidth of the link in Gbit/s, the same in both directions; 0 is no limit."""
    rtt_ms: float
    """Round-trip time to a region with the same value; between two regions the mean of both."""
    jitter_ms: float = 0.0
    """The largest random addition to each one-way delay, in milliseconds."""
    cut: bool = False
    """Whether the backbone drops all packets from and to the region."""

    @property
    def delay_s(self) -> float:
        """The region's part of a one-way delay, in seconds: a quarter of its round trip."""
        return self.rtt_ms / 4000


@dataclass(frozen=True, slots=True)
class Network:
    """A network of regions around one backbone.

    Region i has the address `PREFIX.i.2`, its gateway `PREFIX.i.1`; the machine itself has
    `PREFIX.255.2`.
    """

    name: str
    prefix: str
    """The first two numbers of all addresses, such as `10.77`."""
    regions: tuple[WanRegion, ...]
    tuned: bool = True
    """Whether sockets have windows for the link, as `archipelago wan settings` prints."""
    ceiling_gbit: float | None = None
    """The rate of one connection without a limit, in Gbit/s; None: it is not measured yet."""
    forced: bool = False
    """Whether the links may need more than half of the ceiling."""

    @classmethod
    def planned(
        cls,
        name: str,
        prefix: str,
        regions: Sequence[str],
        gbit: float,
        rtt_ms: float,
        *,
        tuned: bool = True,
    ) -> Self:
        """Return a network whose regions are alike.

        Errors: `UserMistake` with every problem.
        """
        problems = list[str]()
        if (wrong_name := problem_of_name(name)) is not None:
            problems.append(wrong_name)
        if not re.fullmatch(r"\d{1,3}\.\d{1,3}", prefix):
            problems.append(f"--prefix {prefix}: two numbers are needed, such as 10.77")
        if not 2 <= len(regions) <= MOST_REGIONS:
            problems.append(f"{len(regions)} regions: from 2 to {MOST_REGIONS} are possible")
        if twice := {each for each in regions if regions.count(each) > 1}:
            problems.append(f"two regions are named {', '.join(sorted(twice))}")
        problems += wrong_link({"--gbit": gbit, "--rtt-ms": rtt_ms})
        if problems:
            raise UserMistake("\n".join(problems))
        found = (WanRegion(each, i, gbit, rtt_ms) for i, each in enumerate(regions))
        return cls(name, prefix, tuple(found), tuned)

    @property
    def backbone(self) -> str:
        """The namespace that joins the regions."""
        return f"{self.name}-wan"

    def namespace(self, region: WanRegion) -> str:
        """Return the namespace of a region."""
        return f"{self.name}-r{region.number}"

    def device(self, number: int) -> str:
        """Return the backbone's side of the link to a region, or to the machine (`HOST`)."""
        return f"{self.name}b{number}"

    def address(self, number: int) -> str:
        """Return the address of a region, or of the machine (`HOST`)."""
        return f"{self.prefix}.{number}.2"

    def gateway(self, number: int) -> str:
        """Return the backbone's address on the link to a region, or to the machine (`HOST`)."""
        return f"{self.prefix}.{number}.1"

    def region(self, name: str) -> WanRegion:
        """Return the region with this name.

        Errors: `UserMistake` if there is none.
        """
        for region in self.regions:
            if region.name == name:
                return region
        names = ", ".join(region.name for region in self.regions)
        raise UserMistake(f"{self.name} has no region {name}; it has {names}")

    def with_region(self, region: WanRegion) -> Network:
        """Return the network with this region in the place of the one with its number."""
        changed = [region if each.number == region.number else each for each in self.regions]
        return replace(self, regions=tuple(changed))

    @property
    def folder(self) -> Path:
        """The folder of the network's files."""
        return FOLDER / self.name

    @property
    def file(self) -> Path:
        """The file with this description; the forwarder reads it again whenever it changes."""
        return self.folder / FILE

    def write(self, folder: Path | None = None) -> None:
        """Replace the network's file as a whole; `folder`: a place other than the network's own."""
        folder = folder or self.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, asdict(self))


def wrong_link(options: Mapping[str, float]) -> list[str]:
    """Return the options of a link that are no number from 0 up, in one text; empty: all are."""
    wrong = [
        f"{name} {value:g}"
        for name, value in options.items()
        if not (math.isfinite(value) and value >= 0)
    ]
    return [f"{', '.join(wrong)}: a finite number from 0 up is needed"] if wrong else []


def problem_of_name(name: str) -> str | None:
    """Return what is wrong with a name; None: it may be used in paths and names of devices."""
    if NAME.fullmatch(name):
        return None
    return f"--name {name}: a name has 1 to {LONGEST_NAME} of a-z and 0-9, a letter first"


def read(name: str, folder: Path = FOLDER) -> Network:
    """Return the network with this name; `folder` has one folder for each network.

    Errors: `UserMistake` if none is up, or that is no name.
    """
    if (problem := problem_of_name(name)) is not None:
        raise UserMistake(problem)
    try:
        return parsed((folder / name / FILE).read_text())
    except FileNotFoundError:
        up = sorted(each.parent.name for each in folder.glob(f"*/{FILE}"))
        others = f"; up: {', '.join(up)}" if up else ""
        raise UserMistake(f"no network named {name} is up{others}") from None


def parsed(text: str) -> Network:
    """Return the network that a file describes."""
    fields: Any = json.loads(text)
    regions = tuple(WanRegion(**each) for each in fields.pop("regions"))
    return Network(**fields, regions=regions)
