"""Clusters of chips with no machines: their goodput, the bandwidth they need, what to choose.

`cli` and `bench` may come in; a run never imports this room. Two layers model the same thing. The
chips layer knows arrays and chance only (a contract in pyproject.toml): it plays millions of chips
for a month by the events of learners. The rounds layer plays windows of the same trace with the
coordinator's own rules. docs/simulation.md has the model and its limits.

    cluster_model     the chips layer's vocabulary: a cluster, how it recovers, what came of it
    trace             when which slice fails, and when it is back
    learner_timeline  one elastic learner on a trace: when it computes, and when it rebuilds
    configurations    data-parallel, elastic, decoupled, diloco, streaming on the same trace
    closed_form       goodput in closed form
    published         what others have published
    fit               physical constants from the rows of one learner
    table1            `archipelago simulate --table1`
    bandwidth         which link a method needs, and what is computed behind one
    mixed_speeds      learners of different speeds
    anchors           published figures that nothing was fitted on
    rounds            the coordinator's rules on a window of a trace, in virtual time
    layer_agreement   windows played by both layers
    loss_cost         what islands cost in loss, and how many tokens make up for it
    settings          one way to train on a cluster: its links, its shards
    objective         what a setting is worth
    compare           `archipelago simulate CLUSTER.toml`: configurations on one's own cluster
    plan              `archipelago plan`: what to choose, and why
    plan_choice       the best of the settings that work, or what would have to change
    plan_replay       a setting, played by the rules beside the chips layer
    plan_reasons      why this setting, and what would be chosen under other conditions
    pictures          all of it as SVG, for light and dark pages
"""
