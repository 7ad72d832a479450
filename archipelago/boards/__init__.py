"""Grafana boards, Prometheus rules and their configuration, as code.

`archipelago dashboards` writes them, and `archipelago manifest` puts them into a cluster. Each
board answers one question.

    panels              panels and boards, and their JSON for Grafana
    run_board           is my run all right?
    time_board          where does the time of the islands go?
    rounds_board        do the islands take part, and how stale is what they send?
    wire_board          what goes over the wire, and which link is the trouble?
    failures_board      what failed, and what does it cost?
    fleet_board         how are all runs?
    settings            thresholds, addresses and names that people may change
    alert_rules         the alerts, in the manner of kube-prometheus
    recording_rules     rates and shares that boards and alerts share
    kubernetes_objects  PrometheusRule, PodMonitor and ConfigMap
    written             all files, by their paths
    pictures            boards as PNG, without Grafana
    prometheus_answers  what a Prometheus answers to the queries of a board
    yaml_text           objects as YAML text
"""
