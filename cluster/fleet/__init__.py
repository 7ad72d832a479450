"""The fleet, which controls a run: it starts all processes, watches them and handles failures.

`launch` imports this package; `sim` uses its fault plan, `cli` how a run ended. `reconcile` decides
and is pure; `reconcile_loop` observes, asks it, and carries its actions out over
`backend.RayCluster`.

    actor            the actor of the fleet, and how it is started
    controller       the fleet as people and processes call it, on any thread
    keeper           the thread that brings a run up, keeps it to its end and cleans up
    reconcile_loop   one look at the run, and its consequences: look, decide, act
    reconcile        the rules that compare desired and actual islands; pure
    preemption       islands that must leave: SIGTERM, a cloud's notice, a node that Ray drains
    given_up         islands whose process Ray cannot start, found by a sign of life
    draining_nodes   the nodes that Ray drains, asked on a thread of its own
    withheld         islands that the queue of the cluster has the run do without
    queue_message    a run as that queue sees it
    requests         requests of people: which islands, and whether the run is to end
    inbox            messages of processes until the keeper looks, and the answers to them
    island_actions   carries out the actions that reconcile has decided on
    takeover         what an earlier process of the fleet has left, and its islands by name
    depot_reads      the keeper's reads of the depot, retried
    syncer_outage    a syncer that does not answer: the run waits for it, with an alert
    clean_up         steps of the end, of which each runs whatever happens to the others
    fleet_memory     fleet.json, written by the keeper alone
    error_budget     exceptions of the keeper: counted, and the step is retried
    shutdown         the end of a run, retried until the model is saved somewhere
    watchdog         detects core processes that hang, and restarts them
    island_table     the table of islands, with what each one holds
    spares           warm processes that wait to take an island over (hot standby)
    core_actors      syncer, shards and evaluator: started, called, ended
    evaluation       when the model is evaluated, and what happens if that fails
    region_evaluation  when it is evaluated on the held-out text of each region
    contribution_effects  the effects of contributions on the held-out loss; pure
    fault_injection  injects faults: those of the plan that are due, and those that people request
    fault_plan       which faults of a plan are due, and which have happened
    named_seats      the seats of a run that Ray has, by the names of actors and devices
    placement        which devices an island needs, and what can never be placed
    backend          protocols of what the fleet needs of a Ray cluster
    tpu_slice        a TPU slice of several hosts, by Ray's utilities for these
    ray_backend      the implementation over Ray: placement groups, actors of one namespace
    status_view      the status that people see: the syncer's, with the fleet's on top
    status_board     the status that the keeper has published, for other threads
    tracebacks       tracebacks of processes that broke, as files of the run directory
    run_records      what the keeper records at each look: metrics.jsonl, events.jsonl, trackers
    record_files     those two files, continued by each fleet of the run
    metrics_row      the rows of metrics.jsonl: a status with flat columns
    event_kinds      an event of a run as data
    run_events       the events between two statuses; pure
    trouble_events   the events about troubles: alerts, durability, the loss, links; pure
    budget           the devices, the cost and the budget of a run; pure
    run_identity     the figures of a summary that identify a run, and its cost
    tracking         the trackers of a run, each on a thread of its own
    tracker          the interface of a tracker
    tracked_values   the values that trackers are given; pure
    tracker_tensorboard  the tracker `tensorboard`
    tracker_wandb    the tracker `wandb`
    expected_loss    the loss expected after so many tokens, with a band; pure
    expected_source  where that comes from: a CSV file, an earlier run, a law
    loss_course      the loss of a run beside the expected one
    metrics          every metric, declared once
    ray_metrics      the metrics on the pages of Ray's metrics agents
    exposition       the metrics as the text that Prometheus reads
    exporter         the Prometheus target of a run
    http_port        the answers of that port: /, /events, /metrics, /status, /healthz
    http_access      which request that port admits, and links to the page
    http_server      an HTTP server with limits on connections and their time
    page_feed        the content of the live page
    results          the files that a run leaves at its end: model and summary
    outcome          how a run ended
"""
