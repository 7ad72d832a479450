"""The simulator: real rules and real shell in virtual time, with a network that loses and delays.

`cli` and `bench` may come in; a run never imports this room. Time is virtual and all chance comes
from one seed, so that a schedule that breaks an invariant is played again from its number.
"""
