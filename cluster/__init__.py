"""Everything that can fail for reasons outside the program: Ray, clocks, disks, people.

Each folder is a layer: its docstring has the purpose of the layer, the layers that may import it,
and the content of each module. Imports between layers go one way (`pyproject.toml` has the layers).
These modules are beside the layers:

    names     names of the islands, seats and actors of a run
    status    the status of a run, for people and dashboards
    view      the part of the syncer's state from which the fleet decides, and nothing else
    failures  errors and unusable messages of islands, classified by reason
    transfers  the transfer of a contribution, timed without a common clock
    source    fingerprints of the running source, ours and the user's
    package_guard  finds other packages with our names before they are imported
    thinning  series that grow, kept short and evenly spread
    tasks     creation of asyncio tasks, and reporting of exceptions that are never awaited
"""
