"""All files of boards and rules, by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archipelago.boards.alert_rules import alert_groups
from archipelago.boards.failures_board import FAILURES_BOARD
from archipelago.boards.fleet_board import FLEET_BOARD
from archipelago.boards.kubernetes_objects import (
    FROM_RAY,
    JOB,
    boards_config_map,
    metadata,
    pod_monitor,
    prometheus_rule,
    run_endpoint,
)
from archipelago.boards.panels import board_json
from archipelago.boards.recording_rules import recording_groups
from archipelago.boards.rounds_board import ROUNDS_BOARD
from archipelago.boards.run_board import RUN_BOARD
from archipelago.boards.settings import BoardSettings
from archipelago.boards.time_board import TIME_BOARD
from archipelago.boards.wire_board import WIRE_BOARD
from archipelago.boards.yaml_text import yaml_text
from cluster.storage.files import json_text

BOARDS = (RUN_BOARD, TIME_BOARD, ROUNDS_BOARD, WIRE_BOARD, FAILURES_BOARD, FLEET_BOARD)
"""All boards."""
ALERTS_FILE, RULES_FILE, PROMETHEUS_FILE = "alerts.yml", "rules.yml", "prometheus.yml"
FOLDER = "boards"
"""The folder of the boards."""
RAY_TARGETS = "/tmp/ray/prom_metrics_service_discovery.json"
"""The file in which Ray lists its own targets on the head."""
CONTROL_GROUP = {"ray.io/group": "archipelago-control"}
"""The label of the pod with the fleet, in a cluster of `archipelago manifest kuberay`."""
WRITTEN = "Written by `archipelago dashboards`; write it again rather than edit it."


def rule_groups(settings: BoardSettings) -> list[dict[str, Any]]:
    """Return the groups of all rules: recorded rates first, then alerts."""
    return [*recording_groups(), *alert_groups(settings)]


def board_texts() -> dict[str, str]:
    """Return the boards as JSON, by the names of their files."""
    return {board.file: json_text(board_json(board), indent=2) + "\n" for board in BOARDS}


def board_files(settings: BoardSettings) -> dict[str, str]:
    """Return all files by their paths in the folder of `--out`."""
    boards = board_texts()
    files = {f"{FOLDER}/{name}": text for name, text in boards.items()}
    return {
        PROMETHEUS_FILE: _text(prometheus_config(settings)),
        RULES_FILE: _text({"groups": recording_groups()}),
        ALERTS_FILE: _text(
            {"groups": alert_groups(settings)},
            "The runbook of each alert is in docs/howto/alerts. docs/howto/monitoring.md explains "
            "the setup.",
        ),
        **files,
        "grafana/provisioning/datasources/archipelago.yaml": _text(_datasources(settings)),
        "grafana/provisioning/dashboards/archipelago.yaml": _text(_providers(settings)),
        **_kubernetes(settings, boards),
    }


def _text(tree: Mapping[str, Any], more: str = "") -> str:
    return yaml_text([tree], "\n".join(filter(None, [WRITTEN, more])))


def prometheus_config(settings: BoardSettings) -> dict[str, Any]:
    """Return the configuration of a Prometheus on the head, for all runs and for Ray itself."""
    targets = f"{settings.targets.rstrip('/')}/*.json"
    return {
        "global": {"scrape_interval": "10s", "evaluation_interval": "10s"},
        "rule_files": [RULES_FILE, ALERTS_FILE],
        "scrape_configs": [
            {
                "job_name": JOB,
                "file_sd_configs": [{"files": [targets], "refresh_interval": "5s"}],
            },
            {
                "job_name": "ray",
                "file_sd_configs": [{"files": [RAY_TARGETS]}],
                "metric_relabel_configs": [
                    {_snake(key): value for key, value in rule.items()} for rule in FROM_RAY
                ],
            },
        ],
    }


def _snake(key: str) -> str:
    """Return a key of the Prometheus operator as Prometheus itself has it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _datasources(settings: BoardSettings) -> dict[str, Any]:
    source = {
        "name": "Prometheus",
        "uid": "prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": settings.prometheus_url,
        "isDefault": True,
        "jsonData": {"timeInterval": "10s"},
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers(settings: BoardSettings) -> dict[str, Any]:
    provider = {
        "name": "archipelago",
        "folder": "Archipelago",
        "type": "file",
        "allowUiUpdates": True,
        "options": {"path": f"{settings.at.rstrip('/')}/{FOLDER}"},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _kubernetes(settings: BoardSettings, boards: Mapping[str, str]) -> dict[str, str]:
    name, namespace, release = settings.name, settings.namespace, settings.release
    rules = prometheus_rule(metadata(f"{name}-rules", namespace, release), rule_groups(settings))
    monitor = pod_monitor(
        metadata(f"{name}-runs", namespace, release),
        CONTROL_GROUP,
        [run_endpoint(f"{name}-http-token")],
        all_namespaces=True,
    )
    boards_map = boards_config_map(f"{name}-boards", namespace, boards)
    return {
        "kubernetes/prometheus-rule.yaml": _text(rules),
        "kubernetes/pod-monitor.yaml": _text(
            monitor,
            f"Needs a Secret {name}-http-token with the key `token` in its namespace.",
        ),
        "kubernetes/boards-configmap.yaml": _text(boards_map),
    }
