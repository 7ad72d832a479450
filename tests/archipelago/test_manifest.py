"""Manifests for Kubernetes agree with the placement, with KubeRay's schemas, and with `deploy/`."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray._private.label_utils import parse_node_labels_string

from archipelago.cli import manifest as commands
from archipelago.cli.main import main
from archipelago.manifest.kuberay import entrypoint
from archipelago.manifest.kuberay_files import Manifest, kuberay_manifest
from archipelago.manifest.node_groups import TPU_NODES, offered
from archipelago.manifest.placed_config import CONTROL, SHARDS
from archipelago.manifest.pods import wait_for_islands
from archipelago.manifest.site import Cloud, Gcs, Site
from cluster.actors.evaluator.actor import EvaluatorActor
from cluster.actors.hosts.actor import HostActor
from cluster.actors.island.actor import IslandActor
from cluster.actors.ring.island_actor import RingIslandActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.load import load, parse
from cluster.config.schema import Config
from cluster.fleet.http_port import LEAST_TOKEN, TOKEN_VARIABLE, make_token
from cluster.fleet.placement import (
    NODE_ID,
    SLICE,
    Node,
    homeless,
    hosts,
    matches,
    unplaceable,
)
from cluster.launch.preflight import model_layout
from cluster.launch.ray_cluster import Stores, lack
from coordinator.errors import UserMistake
from coordinator.fragments import Layout

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = "../shared/kuberay"
EXAMPLES = {
    "cpu": Cloud.NONE,
    "gpu": Cloud.NONE,
    "tpu-v6e": Cloud.GKE,
}
"""The configurations of `deploy/` and the cloud of each."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@cache
def layout_of_example(example: str) -> Layout:
    return model_layout(load(ROOT / "deploy" / f"{example}.toml"))


@cache
def unchanged(example: str) -> Manifest:
    return changed(example)


def changed(example: str, **changes: Any) -> Manifest:
    config = load(ROOT / "deploy" / f"{example}.toml")
    site = Site(name=example, image="archipelago:latest", cloud=EXAMPLES[example])
    return kuberay_manifest(config, layout_of_example(example), replace(site, **changes))


def made(example: str, **changes: Any) -> Manifest:
    return changed(example, **changes) if changes else unchanged(example)


@cache
def documents(text: str) -> list[Any]:
    return [*yaml.load_all(text, yaml.CSafeLoader)]


def objects(manifest: Manifest) -> Iterator[Any]:
    for name, text in manifest.files.items():
        if name.endswith(".yaml"):
            yield from deepcopy(documents(text))


def of_kind(manifest: Manifest, kind: str) -> Any:
    (found,) = [each for each in objects(manifest) if each.get("kind") == kind]
    return found


def started(group: Mapping[str, Any], replicas: int) -> list[Node]:
    """Return the Ray nodes that KubeRay starts for a worker group, as `ray start` describes them.

    The memory is that of the container.
    """
    (container,) = group["template"]["spec"]["containers"]
    total = {name: float(int(text)) for name, text in group["resources"].items()}
    memory = container["resources"]["limits"]["memory"]
    total["memory"] = float(int(memory[:-2]) * UNITS[memory[-2:]])
    total["object_store_memory"] = float(group["rayStartParams"]["object-store-memory"])
    labels = parse_node_labels_string(",".join(f"{k}={v}" for k, v in group["labels"].items()))
    return [
        Node(
            f"{group['groupName']}-{replica}-{host}",
            total,
            {
                **labels,
                NODE_ID: f"{group['groupName']}-{replica}-{host}",
                SLICE: f"{group['groupName']}-{replica}",
            },
        )
        for replica in range(replicas)
        for host in range(group["numOfHosts"])
    ]


def eager(config: Config) -> Config:
    """Return a configuration whose groups must all be placed at the start."""
    islands = [group.model_copy(update={"opportunistic": False}) for group in config.islands]
    return config.model_copy(update={"islands": tuple(islands)})


def run_config(manifest: Manifest) -> Config:
    (found,) = [
        each["data"]["run.toml"]
        for each in objects(manifest)
        if each.get("kind") == "ConfigMap" and "run.toml" in each["data"]
    ]
    assert tomllib.loads(found) == tomllib.loads(manifest.files["run.toml"])
    return parse(tomllib.loads(found), origin="manifest")


@pytest.mark.parametrize("example", EXAMPLES)
def test_worker_groups_offer_what_the_placement_asks_for(example: str) -> None:
    """All islands fit on the pods at full size, and not with one replica less of any group."""
    manifest = made(example)
    config = eager(run_config(manifest))
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    most = {group["groupName"]: group["maxReplicas"] for group in groups}

    def nodes(fewer: str | None = None) -> list[Node]:
        return [
            node
            for group in groups
            for node in started(group, most[group["groupName"]] - (group["groupName"] == fewer))
        ]

    assert unplaceable(config, nodes()) == []
    for group in config.islands:
        wanted = (group.count + group.spares) * group.hosts
        assert len([n for n in nodes() if n.name.startswith(f"{group.group}-")]) == wanted
        (problem,) = unplaceable(config, nodes(fewer=group.group))
        assert f"group {group.group}:" in problem
    if any(config.monitor.evaluator.devices.values()):
        control = [node for node in nodes() if node.name.startswith(CONTROL)]
        assert homeless(config.monitor.evaluator, control) is None
        assert homeless(config.monitor.evaluator, nodes(fewer=CONTROL)[:0]) is not None


def test_amounts_are_whole_numbers_with_all_their_digits() -> None:
    """`ray start` refuses a part of a custom resource; memory is that of the container."""
    tables = load(ROOT / "deploy/cpu.toml").model_dump(mode="json", exclude_none=True)
    asked = {"CPU": 0.5, "memory": 8589934592.0, "lane": 0.5, "ticket": 12345678.0}
    for island in tables["islands"]:
        island["resources"] = asked
    site = Site(name="cpu", image="archipelago:latest")
    manifest = kuberay_manifest(parse(tables), layout_of_example("cpu"), site)
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    for group in groups[1:]:
        assert group["resources"] == {"CPU": "1", "lane": "1", "ticket": "12345678"}
    nodes = [node for group in groups for node in started(group, group["maxReplicas"])]
    assert unplaceable(eager(run_config(manifest)), nodes) == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_island_can_take_the_place_of_another_group(example: str) -> None:
    """Each group fits on its own pods only, control included."""
    manifest = made(example)
    config = eager(run_config(manifest))
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    for group in config.islands:
        alone = config.model_copy(update={"islands": (group,)})
        others = [
            node
            for each in groups
            if each["groupName"] != group.group
            for node in started(each, 100)
        ]
        assert any(f"group {group.group}:" in each for each in unplaceable(alone, others))


@pytest.mark.parametrize("example", EXAMPLES)
def test_object_stores_have_room_for_the_run(example: str) -> None:
    manifest = made(example)
    config = run_config(manifest)
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    nodes = [node for group in groups for node in started(group, 1)]
    stores = Stores.of(config, layout_of_example(example))
    (control,) = [node for node in nodes if node.name.startswith(CONTROL)]
    assert lack(config.sync, stores, nodes, control.labels[NODE_ID]) is None
    small = [replace(node, total={**node.total, "object_store_memory": 1.0}) for node in nodes]
    assert lack(config.sync, stores, small, control.labels[NODE_ID]) is not None


@pytest.mark.parametrize("example", EXAMPLES)
def test_opportunistic_groups_begin_empty_and_grow(example: str) -> None:
    manifest = made(example)
    config = run_config(manifest)
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    for each in groups:
        opportunistic = each["groupName"] in {g.group for g in config.islands if g.opportunistic}
        spec = each["template"]["spec"]
        assert (each["minReplicas"] == 0) == (each["replicas"] == 0) == opportunistic
        assert spec["priorityClassName"].endswith("-spare-capacity") == opportunistic
        assert each["maxReplicas"] > 0
    control = groups[0]
    assert control["groupName"] == CONTROL
    assert control["template"]["spec"]["priorityClassName"].endswith("-control")
    assert control["resources"]["control"] == "1"
    head = of_kind(manifest, "RayCluster")["spec"]["headGroupSpec"]
    assert head["resources"] == {"CPU": "0"}


def test_a_pod_has_as_long_to_end_as_an_island_to_drain() -> None:
    config = load(ROOT / "deploy" / "cpu.toml", ["faults.policy.drain_s=200"])
    manifest = kuberay_manifest(config, layout_of_example("cpu"), Site(name="cpu", image="x"))
    for group in of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        script = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert "--deadline-remaining-seconds 200" in script
        assert spec["terminationGracePeriodSeconds"] > 200


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (IslandActor, True),
        (RingIslandActor, True),
        (HostActor, True),
        (SyncerActor, False),
        (EvaluatorActor, False),
    ],
)
def test_every_host_of_an_island_holds_its_pod(kind: type, holds: bool, tmp_path: Path) -> None:
    """Ray names a process after the class of its actor."""
    (tmp_path / "cmdline").write_text(f"ray::{kind.__name__}.steps\0")
    line = wait_for_islands(60).replace("/proc/[0-9]*", str(tmp_path)).replace("sleep 1", "exit 3")
    ended = subprocess.run(["/bin/sh", "-c", line], check=False)
    assert ended.returncode == (3 if holds else 0)


@pytest.mark.long
def test_the_wait_before_a_pod_ends_is_for_islands_only() -> None:
    """A process named as Ray names an island holds the pod; another one does not."""

    def waited(name: str) -> bool:
        """Return whether the line is still waiting after a moment, while such a process runs."""
        island = subprocess.Popen(["bash", "-c", f"exec -a '{name}' sleep 60"])
        try:
            while not Path(f"/proc/{island.pid}/cmdline").read_bytes().startswith(name.encode()):
                pass  # it is still bash
            pattern = wait_for_islands(60).replace("/proc/[0-9]*", f"/proc/{island.pid}")
            line = subprocess.Popen(["/bin/sh", "-c", pattern])
            try:
                line.wait(timeout=5)
            except subprocess.TimeoutExpired:
                island.kill()
                island.wait()
                line.wait(timeout=10)
                return True
            return False
        finally:
            island.kill()
            island.wait()

    assert waited("ray::IslandActor.steps")
    assert waited("ray::RingIslandActor")
    assert waited("ray::HostActor")
    assert not waited("ray::SyncerActor")


def test_a_waiting_job_resumes_from_the_volume() -> None:
    job = of_kind(made("cpu"), "RayJob")["spec"]
    assert "--continue" in job["entrypoint"]
    assert "--run-dir /archipelago/runs/cpu" in job["entrypoint"]
    assert json.loads(job["entrypointResources"]).keys() == {"control"}
    assert job["rayClusterSpec"] == of_kind(made("cpu"), "RayCluster")["spec"]
    assert entrypoint(Site(name="x", image="y")).startswith("archipelago run /etc/archipelago/")


def test_kueue_admits_the_whole_cluster() -> None:
    manifest = made("cpu", queue="research")
    for kind in ("RayCluster", "RayJob"):
        found = of_kind(manifest, kind)
        assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert of_kind(manifest, "RayJob")["spec"]["suspend"] is True
    spec = of_kind(manifest, "RayCluster")["spec"]
    assert spec["enableInTreeAutoscaling"] is False
    assert "autoscalerOptions" not in spec
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] > 0


def test_a_bucket_needs_no_place_on_the_volume_but_a_way_out() -> None:
    spec = of_kind(made("gpu"), "RayCluster")["spec"]
    ways = spec["networkPolicy"]["worker"]["egressRules"]
    assert [443] in [[port["port"] for port in rule["ports"]] for rule in ways]
    assert run_config(made("gpu")).durability.dir == load(ROOT / "deploy/gpu.toml").durability.dir
    assert run_config(made("cpu")).durability.dir == "/archipelago/durable"
    cpu_ways = of_kind(made("cpu"), "RayCluster")["spec"]["networkPolicy"]["worker"]["egressRules"]
    assert len(cpu_ways) == 1, "only name look-ups"


ANYWHERE = "0.0.0.0/0"
ANY_HTTPS = {(ANYWHERE, 443)}
METADATA = ("169.254.169.254/32", 80)


@pytest.mark.parametrize(
    ("changes", "head", "worker"),
    [
        ({"data": {"source": "s3://b/x"}}, ANY_HTTPS, ANY_HTTPS),
        (
            {
                "data": {
                    "mixture": [{"source": "/x", "weight": 1}, {"source": "gs://b/x", "weight": 1}]
                }
            },
            ANY_HTTPS,
            ANY_HTTPS,
        ),
        ({"regions": {"eu": {"data": "s3://eu/x"}}}, ANY_HTTPS, ANY_HTTPS),
        (
            {
                "regions": {"eu": {"data": "/x", "durability": {"dir": "s3://eu/y"}}},
                "durability": {"keep_contributions": True},
            },
            ANY_HTTPS,
            ANY_HTTPS,
        ),
        (
            {"data": {"source": "s3://b/x?endpoint_override=store.s3:9000&scheme=http"}},
            {(ANYWHERE, 9000)},
            {(ANYWHERE, 9000)},
        ),
        ({"monitor": {"track": ["tensorboard", "wandb"]}}, ANY_HTTPS, ANY_HTTPS),
        ({"monitor": {"track": ["tensorboard"]}}, set(), set()),
        ({"faults": {"preemption": {"cloud": "aws"}}}, set(), {METADATA}),
        (
            {"faults": {"preemption": {"cloud": "gce"}}},
            set(),
            {METADATA, ("169.254.169.252/32", 987), ("169.254.169.252/32", 988)},
        ),
        (
            {"faults": {"preemption": {"cloud": "gce", "address": "http://192.0.2.1:81"}}},
            set(),
            {("192.0.2.1/32", 81)},
        ),
        (
            {"faults": {"preemption": {"cloud": "gce", "address": "http://metadata.here"}}},
            set(),
            {(ANYWHERE, 80)},
        ),
    ],
)
def test_pods_reach_what_the_configuration_names(
    changes: dict[str, Any], head: set[tuple[str, int]], worker: set[tuple[str, int]]
) -> None:
    tables = load(ROOT / "deploy/cpu.toml").model_dump(mode="json", exclude_none=True)
    for name, table in changes.items():
        tables[name] = table if name == "regions" else tables[name] | table
    if "mixture" in changes.get("data", {}):
        del tables["data"]["source"]
    if "regions" in changes:
        tables["islands"][0] |= {"region": "eu", "label_selector": {"region": "eu"}}
    site = Site(name="cpu", image="archipelago:latest", queue="no-autoscaler")
    manifest = kuberay_manifest(parse(tables), layout_of_example("cpu"), site)
    spec = of_kind(manifest, "RayCluster")["spec"]
    for pod, wanted in (("head", head), ("worker", worker)):
        assert wanted == {
            (target["ipBlock"]["cidr"], port["port"])
            for rule in spec["networkPolicy"][pod]["egressRules"]
            for target in rule["to"]
            if "ipBlock" in target
            for port in rule["ports"]
        }
    bucket = ["cpu-bucket"] if changes.keys() & {"data", "regions"} else []
    tracker = ["cpu-wandb"] if "wandb" in changes.get("monitor", {}).get("track", []) else []
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        fleet = group.get("groupName") in (None, "archipelago-control")
        assert container.get("envFrom", []) == [
            {"secretRef": {"name": each, "optional": True}}
            for each in [*bucket, *(tracker if fleet else [])]
        ]


def test_prometheus_reads_the_metrics_port_with_the_token() -> None:
    manifest = made("cpu")
    port = run_config(manifest).monitor.metrics_port
    run, ray = [each for each in objects(manifest) if each.get("kind") == "PodMonitor"]
    (endpoint,) = run["spec"]["podMetricsEndpoints"]
    groups = of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports[endpoint["port"]] == port
        env = {each["name"]: each for each in container["env"]}
        secret = env[TOKEN_VARIABLE]["valueFrom"]["secretKeyRef"]
        assert secret["name"] == endpoint["authorization"]["credentials"]["name"]
        assert group["template"]["metadata"]["labels"].items() >= (
            ray["spec"]["selector"]["matchLabels"].items()
        )
    assert run["spec"]["selector"]["matchLabels"]["ray.io/group"] == CONTROL
    ingress = of_kind(manifest, "RayCluster")["spec"]["networkPolicy"]["worker"]["ingressRules"]
    assert port in [each["port"] for each in ingress[0]["ports"]]


def test_only_ray_is_scraped_if_it_has_the_metrics_of_the_run() -> None:
    config = load(ROOT / "deploy" / "cpu.toml")
    monitor = config.monitor.model_copy(update={"ray_metrics": True})
    manifest = kuberay_manifest(
        config.model_copy(update={"monitor": monitor}),
        layout_of_example("cpu"),
        Site(name="cpu", image="archipelago:latest"),
    )
    (ray,) = [each for each in objects(manifest) if each.get("kind") == "PodMonitor"]
    (endpoint,) = ray["spec"]["podMetricsEndpoints"]
    targets = [rule["targetLabel"] for rule in endpoint["metricRelabelings"]]
    assert targets == ["WorkerId", "__name__"]
    assert run_config(manifest).monitor.ray_metrics


def test_the_boards_and_alerts_are_the_shipped_ones() -> None:
    manifest = made("cpu")
    groups = [
        group
        for name in ("rules.yml", "alerts.yml")
        for group in yaml.safe_load((ROOT / "dashboards" / name).read_text("utf-8"))["groups"]
    ]
    assert of_kind(manifest, "PrometheusRule")["spec"] == {"groups": groups}
    (boards,) = [
        each["data"]
        for each in objects(manifest)
        if each.get("kind") == "ConfigMap" and "run.toml" not in each["data"]
    ]
    for name, text in boards.items():
        assert text == (ROOT / "dashboards/boards" / name).read_text("utf-8")
    assert "archipelago.json" in boards


def test_the_operator_gets_the_feature_gates_that_the_cluster_uses() -> None:
    def gates(**changes: Any) -> dict[str, bool]:
        text = made("cpu", **changes).files["operator-values.yaml"]
        return {each["name"]: each["enabled"] for each in yaml.safe_load(text)["featureGates"]}

    all_on = gates()
    assert all(all_on.values())
    without = gates(tls=False, network_policy=False, gcs=Gcs.NONE)
    off = {name for name, on in without.items() if not on}
    assert off == {
        "RayClusterMTLS", "RayClusterNetworkPolicy", "GCSFaultToleranceEmbeddedStorage"
    }  # fmt: skip
    spec = of_kind(made("cpu", tls=False, network_policy=False, gcs=Gcs.NONE), "RayCluster")["spec"]
    assert not spec.keys() & {"tlsOptions", "networkPolicy", "gcsFaultToleranceOptions"}


def test_tpu_slices_are_requested_as_a_whole() -> None:
    groups = of_kind(made("tpu-v6e"), "RayCluster")["spec"]["workerGroupSpecs"]
    by_name = {group["groupName"]: group for group in groups}
    large, spot = by_name["large"], by_name["spot"]
    assert (large["numOfHosts"], large["resources"]["TPU"]) == (4, "4")
    assert (spot["numOfHosts"], spot["resources"]["TPU"]) == (1, "8")
    nodes = large["template"]["spec"]["nodeSelector"]
    assert nodes == {
        "cloud.google.com/gke-tpu-accelerator": TPU_NODES["TPU-V6E"],
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert spot["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    limits = large["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["google.com/tpu"] == "4"


def test_conditions_of_selectors_become_labels_that_meet_them() -> None:
    conditions = {"a": "x", "b": "in(y, z)", "c": "!x", "d": "!in(x,y)"}
    labels = offered(conditions)
    assert labels == {"a": "x", "b": "y"}
    assert all(matches(wanted, labels.get(key)) for key, wanted in conditions.items())


@pytest.mark.parametrize(("shards", "pods"), [(5, (3, 2)), (1, (1,))])
def test_shards_of_several_regions_have_pods_in_each(shards: int, pods: tuple[int, ...]) -> None:
    """The placement takes the regions in turn, and finds a pod for each shard there."""
    tables = load(ROOT / "deploy/cpu.toml").model_dump(mode="json", exclude_none=True)
    tables["sync"] |= {"shards": shards, "shard_labels": {"region": "in(EU_1, us)"}}
    tables["durability"]["dir"] = "/data"
    config, site = parse(tables), Site(name="cpu", image="archipelago:latest")
    manifest = kuberay_manifest(config, layout_of_example("cpu"), site)
    groups = [
        group
        for group in of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
        if group["groupName"].startswith(SHARDS)
    ]
    names = [f"{SHARDS}-eu-1", f"{SHARDS}-us"]
    assert [(each["groupName"], each["replicas"]) for each in groups] == [
        *zip(names, pods, strict=False)
    ]
    nodes = [node for group in groups for node in started(group, group["replicas"])]
    chosen = hosts(config.sync.shard_labels or {}, nodes)
    regions = {node.name: node.labels["region"] for node in nodes}
    assert [regions[name] for name in chosen] == [("EU_1", "us")[i % 2] for i in range(shards)]


def test_the_pods_of_control_and_shards_are_not_evicted() -> None:
    """Kubernetes counts the pods of a RayCluster only for an integer in `minAvailable`."""
    tables = load(ROOT / "deploy/cpu.toml").model_dump(mode="json", exclude_none=True)
    tables["sync"] |= {"shards": 3, "shard_labels": {"region": "in(eu, us)"}}
    tables["durability"]["dir"] = "/data"
    site = Site(name="cpu", image="archipelago:latest")
    manifest = kuberay_manifest(parse(tables), layout_of_example("cpu"), site)
    labels = {
        group["groupName"]: {
            **group["template"]["metadata"]["labels"], "ray.io/group": group["groupName"]
        }
        for group in of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    budgets = [each for each in objects(manifest) if each.get("kind") == "PodDisruptionBudget"]
    for budget in budgets:
        accepted(budget)
        wanted = budget["spec"].pop("selector")["matchLabels"]
        (group,) = [name for name, each in labels.items() if each.items() >= wanted.items()]
        found[group] = budget["spec"]
    assert found == {
        CONTROL: {"minAvailable": 1},
        f"{SHARDS}-eu": {"minAvailable": 2},
        f"{SHARDS}-us": {"minAvailable": 1},
    }
    assert len({budget["metadata"]["name"] for budget in budgets}) == len(budgets)


def test_spare_pods_make_the_cluster_autoscaler_add_nodes() -> None:
    """Cluster Autoscaler adds no node for a pod below `--expendable-pods-priority-cutoff`."""
    cutoff, usual = -10, 0
    (value,) = [
        each["value"]
        for each in objects(made("cpu"))
        if each.get("kind") == "PriorityClass" and each["metadata"]["name"] == "cpu-spare-capacity"
    ]
    assert cutoff <= value < usual


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Not_a_name"}, "--name Not_a_name"),
        ({"memory": {"stedy": "1Gi"}}, "did you mean steady?"),
        ({"memory": {"steady": "1.5 GB"}}, "such as 64Gi"),
        ({"most": {"spot": 1}}, "begins with 2"),
        ({"most": {"steady": 6}}, "set opportunistic = true"),
        ({"most": {"spot": 6}, "queue": "research"}, "has no effect with --queue"),
        ({"most": {CONTROL: 3}}, "only groups of islands grow"),
        ({"gcs": Gcs.REDIS}, "--redis"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserMistake, match="--") as error:
        made("cpu", **changes)
    assert message in str(error.value)


def test_help_names_the_platforms_that_have_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["manifest", "-h"])
    said = capsys.readouterr().out
    assert "Deployment files from the configuration of a run: Kubernetes, Slurm.\n" in said
    made = [each.callback for each in commands.manifest.registered_commands]
    assert made == [commands.kuberay, commands.slurm]


def test_a_group_with_a_reserved_name_is_refused() -> None:
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"group": CONTROL}]}
    with pytest.raises(UserMistake, match="is a node group already"):
        kuberay_manifest(parse(tables), layout_of_example("cpu"), Site(name="x", image="y"))


def test_sizes_and_limits_of_a_site_are_used() -> None:
    manifest = made(
        "cpu",
        memory={"steady": "77Gi"},
        most={"spot": 9},
        node_selectors={"steady": {"pool": "blue"}},
        storage_class="nfs",
    )
    groups = {
        g["groupName"]: g for g in of_kind(manifest, "RayCluster")["spec"]["workerGroupSpecs"]
    }
    spec = groups["steady"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["requests"]["memory"] == "77Gi"
    assert spec["nodeSelector"] == {"pool": "blue"}
    assert groups["spot"]["maxReplicas"] == 9
    assert of_kind(manifest, "PersistentVolumeClaim")["spec"]["storageClassName"] == "nfs"


@pytest.mark.parametrize("example", EXAMPLES)
def test_deploy_has_what_the_command_writes(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make deploy` writes it again."""
    arguments = [str(ROOT / "deploy" / f"{example}.toml"), "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["manifest", "kuberay", *arguments, "--cloud", EXAMPLES[example]])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    written = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert {Path(path).name for path in report["files"]} == written.keys()
    kept = {path.name: path.read_text("utf-8") for path in (ROOT / "deploy" / example).iterdir()}
    assert kept == written


@pytest.mark.needs(SCHEMAS)
@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_kuberay_accepts_them(example: str, kind: str) -> None:
    """The strict schemas refuse a misspelt key, which the test shows as well."""
    schema = json.loads((ROOT / SCHEMAS / f"{kind.lower()}.v1.schema.json").read_text("utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    changes: list[dict[str, Any]] = [{}]
    if example == "cpu":
        changes += [{"queue": "research"}, {"gcs": Gcs.REDIS, "redis": "redis:6379"}]
    for change in changes:
        changed_one = of_kind(made(example, **change), kind)
        assert [error.message for error in check.iter_errors(changed_one)] == []
    found = of_kind(made(example), kind)
    spec = found["spec"].get("rayClusterSpec", found["spec"])
    spec["workerGroupSpecs"][0]["maxReplica"] = 3
    assert any("maxReplica" in error.message for error in check.iter_errors(found))


@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_accepts_pods_and_objects(example: str) -> None:
    """Pods are checked as KubeRay makes them, from the templates."""
    manifest = made(example)
    spec = of_kind(manifest, "RayCluster")["spec"]
    templates = [spec["headGroupSpec"]["template"]]
    templates += [group["template"] for group in spec["workerGroupSpecs"]]
    for template in templates:
        pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "name": "x"}
        accepted(pod)
        pod["spec"] = {**pod["spec"], "restartPolicies": "Never"}
        with pytest.raises(kubernetes_validate.ValidationError):
            accepted(pod)
    kinds = set[str]()
    for each in objects(manifest):
        foreign = ("ray.io/", "monitoring.coreos.com/")
        if "kind" in each and not each["apiVersion"].startswith(foreign):
            accepted(each)
            kinds.add(each["kind"])
    assert kinds == {"PersistentVolumeClaim", "ConfigMap", "PodDisruptionBudget", "PriorityClass"}


def accepted(found: Mapping[str, Any]) -> None:
    kubernetes_validate.validate(dict(found), "1.37", strict=True)


def test_a_node_can_bring_the_token_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "t" * LEAST_TOKEN)
    assert make_token() == "t" * LEAST_TOKEN
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    assert len(make_token()) > LEAST_TOKEN
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert make_token() != make_token()
