"""Models of clusters without machines: goodput, bandwidth, and how to configure a run.

`cli` and `bench` may import this package; a run never does. Two layers model the same thing. The
chips layer depends only on arrays and random numbers (a contract in pyproject.toml enforces it): it
simulates millions of chips for a month through the events of their learners. The rounds layer
simulates windows of the same trace with the coordinator's own rules. docs/lab/simulation.md
describes the model and its limits.

    cluster_model     the chips layer's vocabulary: a cluster, its recovery, an outcome
    trace             the failure trace: when each slice fails and returns
    learner_timeline  one elastic learner on a trace: when it computes and when it rebuilds
    configurations    data-parallel, elastic, decoupled, diloco, streaming on the same trace
    closed_form       goodput in closed form
    published         published figures to compare with
    fit               physical constants, fitted to the rows of one learner
    table1            `archipelago simulate --table1`
    bandwidth         the link that a method needs, and the utilisation behind a given link
    mixed_speeds      learners of different speeds
    anchors           published figures that nothing was fitted on
    rounds            the coordinator's rules on a window of a trace, in virtual time
    layer_agreement   windows played by both layers
    loss_cost         the cost of islands in loss, and the tokens that make up for it
    gap_law           the gap to data-parallel training by H, T and M, from this project's runs
    settings          the ways to train on a cluster
    setting_traffic   the load of each link, the regions and nodes of the shards
    objective         the value of a setting: hours or dollars to the target loss
    compare           `archipelago simulate CLUSTER.toml`: configurations on a user's cluster
    plan              `archipelago plan`: the setting to choose, and the reasons
    plan_choice       the best of the settings that work, or the change that would make one work
    plan_replay       a setting, played by the rules beside the chips layer
    plan_reasons      the reasons for a setting, and the choice under other conditions
    pictures          SVG pictures of all of this, for light and dark pages
"""
