"""The invariants of every run, checked after every event, and the coverage of the checks.

The simulator checks each schedule here; `archipelago replay` checks a run that is over. A run never
imports this package, so the checks share nothing with a run but the rules.

    judge        receives every event and has each of the modules below check it
    history      the judge's memory of a run, and a second copy of the protocol's constants
    facts        facts that the simulator has besides the events; `Violation`
    fencing      which messages are accepted, what the gate refuses, how long an island is barred
    members      no learner is given up or revived without a reason; one holder for each lease
    claims       no message moves a clock or the ledger further than an honest one could
    clock        t never falls and is the K-th largest clock; no silent learner is kept
    rounds       rounds open when they are due and close in time; versions grow by one
    merges       a merge has its quorum, its order, and each window once
    effects      effects come in their order, durable before published
    termination  each fragment has a last round, and a run ends once
    coverage     the pairs of state and event that a schedule went through
    audit        `archipelago audit`: what each region read, and what crossed its border
    audit_errors  the reasons on a tape that come from errors of an island
    audit_lineage  the merges of an audit, and what restarts made of them
    audit_result  its result: traffic by region, and the lineage of merges
    rollout      `archipelago stage`: whether a run passes a stage of a roll-out
    replay       `archipelago replay`: rebuild a run from its tape, and compare
    token_counts  the token counts of a run, counted again from its tape
"""
