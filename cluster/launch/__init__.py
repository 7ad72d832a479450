"""From a configuration to a running program and back: start, reach, watch, end.

`cli` and `bench` come in. The terminal's process owns what it starts: whatever happens, that is
stopped, and nothing else is.
"""
