"""The processes that evaluate the model: one for the run, and one in each region with data.

Modules:

    actor         the actor of the evaluator
    region_actor  the actor that evaluates on held-out text of its region
    public_model  the model as both fetch it from the shards
    contribution_source  the contributions whose effect both measure, from the shards
    hosts         an evaluator of several hosts, which evaluate as one
"""
