"""What must hold of every run: invariants, looked for after every event, and what was covered.

The simulator judges each schedule here, `archipelago replay` a run that is over. A run never
imports this room, so that what judges it shares nothing with it but the rules.

    judge        is told of every event, and has each of the modules below look at it
    history      what the judge remembers of a run, and the protocol's constants, said again
    facts        what the simulator knows besides events; `Violation`
    fencing      who is heard, what the gate refuses, how long an island is barred
    members      nobody is given up or comes back for nothing; each lease is in one hand
    claims       no word moves a clock or the ledger further than an honest one could
    clock        t never falls and is the K-th largest clock; nobody silent is kept
    rounds       rounds open when they are due and close in time, versions grow by one
    merges       what is merged: over the quorum, in order, each window once
    effects      effects: each in its time, durable before published
    termination  the last rounds, and that a run ends once
    coverage     which pairs of state and event a schedule went through
    replay       `archipelago replay`: rebuild a run from its tape, and compare
"""
