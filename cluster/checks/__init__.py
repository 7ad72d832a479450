"""What must hold of every run: invariants, looked for after every event, and what was covered.

The simulator judges each schedule here, `archipelago replay` a run that is over. A run never
imports this room, so that what judges it shares nothing with it but the rules.
"""
