"""The configuration of a run: TOML, checked once at the door, printed and hashed.

Everybody above may come in: what is past this door need not be checked again. Where a problem lies
is said the way `--set` takes it: `sync.every`, `islands.0.count`.
"""
