"""An island's process.

Modules:

    actor  the actor of an island: its process, and the calls that the run makes of it
"""
