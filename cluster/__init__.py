"""Everything that can fail for reasons outside the program: Ray, clocks, disks, people.

Each folder is a room; its docstring says what it is for, who may come in, and what each module
holds. Imports between rooms go one way (`pyproject.toml` has the layers). Beside the rooms:

    names     what islands, seats and actors of a run are called
    status    what a run says of itself, for people and dashboards
    view      what the fleet decides from, for nobody else
    failures  what an island raises or sends that is of no use, told apart
    source    which source runs, ours and the user's
    package_guard  finds other packages named as ours, before they are imported
    tasks     how asyncio tasks are made, and what becomes of exceptions that nobody awaits
"""
