"""The evaluator's process: its actor, on one host or on several.

Modules:

    actor  the actor of the evaluator
    hosts  ... of several hosts: they judge as one
"""
