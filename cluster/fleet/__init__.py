"""Who keeps a run: which islands shall be there, on which devices, and what is done when they fail.

`launch` comes in; `sim` for the fault plan, `cli` for how a run ended. `reconcile` decides and is
pure; `reconcile_loop` looks, asks it, and does what it says over `backend.RayCluster`.

    actor            the actor of the fleet, and how it is started
    controller       the fleet as people and processes call it, on any thread
    keeper           the thread that brings a run up, keeps it to its end and cleans up
    reconcile_loop   one look at the run, and what follows from it: look, decide, act
    reconcile        the rules: islands that shall be there against those that are; pure
    requests         what people want: which islands, and whether the run shall end
    inbox            what processes say until the keeper looks, and what they are answered
    island_actions   carries out what reconcile has decided for an island
    fleet_memory     fleet.json, written by the keeper alone
    error_budget     exceptions of the keeper: counted, and the step is made again
    shutdown         the end of a run, tried until the model is somewhere
    watchdog         which process of the core hangs, and is restarted
    island_table     the table of islands, with what each one holds
    spares           warm processes that wait to take an island over
    core_actors      syncer, shards and evaluator: started, asked, ended
    evaluation       when the model is judged, and what if that fails
    fault_injection  faults: those of the plan that are due, and those that people ask for
    fault_plan       which faults of a plan are due, and which have happened
    placement        which devices an island needs, and what can never fit
    backend          what the fleet needs of a Ray cluster, as a protocol
    tpu_slice        a TPU slice of several hosts, by Ray's utilities for these
    ray_backend      the same over Ray: placement groups, actors of one namespace
    status_view      the status that people see: the syncer's, with the fleet's on top
    status_board     the status that the keeper has published, for other threads
    tracebacks       those of processes that broke, as files of the run directory
    metrics          every metric, declared once
    exporter         the Prometheus target of a run
    http_port        what that port answers: /metrics, /status, /healthz
    results          what a run leaves at its end: model and summary
    outcome          how a run ended
"""
