"""The evaluator's process: its actor, on one host or on several.

Modules:

    actor  the actor of the evaluator
    hosts  an evaluator of several hosts, which evaluate as one
"""
