"""The shard's process: it holds fragments, takes contributions in, merges, publishes.

Only `actors`, the simulator's replay and tests come in. No Ray here; arithmetic is `coordinator`'s.
"""
