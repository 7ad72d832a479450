"""The syncer's process: it carries events to the rules and effects from them, in order, durably.

Only `actors`, the simulator and tests come in. No Ray here, and no arrays: other processes are
reached over `Ports`, the tape over `Log`.
"""
