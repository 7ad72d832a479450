"""What measures: the benches behind `archipelago bench`, their baselines and stand-ins.

Only `cli` comes in. A run never imports this room: whatever a bench needs of a run it gets as any
user would, or over an actor of its own (`stub_actor`, `baseline_actor`).
"""
