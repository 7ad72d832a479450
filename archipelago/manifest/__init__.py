"""Deployment files of a run, written from the run's own configuration.

`node_groups` is the one table from which the pods and the placement follow: it asks
`cluster.fleet.placement` for the resources and labels of each island, and offers these. Nothing
here connects to a cluster; `cli` prints and writes what these functions return.

    site             the facts about a cluster that no configuration of a run has
    placed_config    the configuration for that cluster: places, labels, a fixed metrics port
    node_groups      the table of node groups: what each node offers, and how many there are
    memory_sizes     the memory of each kind of node, by the formulas of the page on memory
    pods             the pod of a node: its container, environment, volumes and grace period
    network_rules    the network policy of a cluster
    kuberay          RayCluster and RayJob for the KubeRay operator
    kuberay_files    all files of `archipelago manifest kuberay`
    cluster_objects  the objects around them: claim, configuration, priorities, settings
    monitoring       PodMonitor, PrometheusRule and the boards, for one site
    slurm            a batch file for Slurm around `ray symmetric-run`
    slurm_files      all files of `archipelago manifest slurm`
"""
