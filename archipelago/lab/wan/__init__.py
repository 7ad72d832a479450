"""A wide-area network on one machine: regions as network namespaces with thin links and latency.

A run on such a network speaks to real kernels: only the distance is simulated.

    network  the description of a network, and the file that its processes share
    kernel   namespaces, links, token buckets, latency and cuts, by the kernel's own tools
    delay    the process that holds packets back where the kernel has no netem
    ceiling  the most that this machine forwards, measured before links are limited
    nodes    the Ray nodes in the regions, and the end of every process of a network
    signals  signals that end a process, as exceptions
    rig      a network brought up, changed while a run uses it, and taken down
"""
