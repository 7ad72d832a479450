"""A wide-area network on one machine: regions as network namespaces with thin links and latency."""
