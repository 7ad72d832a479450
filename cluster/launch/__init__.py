"""The commands around a run: start one, follow it, reach it from another terminal, end it.

`cli` and `bench` import this layer. The terminal's process owns everything that it starts. However
the run ends, the process stops all of it, and nothing else.

    preflight      checks of a configuration against the world before anything is started
    initial_source  the source of a run's initial parameters: found, checked and written down
    hf_source      a folder of transformers as that source: its shape and its layer scalars
    run_model      the model of a run, from its files: the newest state or an earlier step
    export         the model of a run, written as safetensors or as an Orbax checkpoint
    hf_export      the model of a run as a folder that transformers reads
    hf_card        its model card: data, tokens, loss, goodput, lineage
    hf_tokenizer   its tokenizer
    run            one run from its start to its end, owned by this process or by its fleet
    job            a run as a job of a Ray cluster
    job_state      the state of a submitted run's job, for a run that cannot be reached
    ray_cluster    an embedded Ray, or an existing Ray cluster
    connect        the connection to an existing Ray cluster
    ray_messages   Ray's messages about the cluster, which go to the standard error
    interrupts     handlers of Ctrl-C and SIGTERM for a graceful shutdown
    exit_message   a message on how to resume if Ray ends this process
    client         calls to a run from another terminal: stop, scale, drain, save
    status_stream  the status of a run, repeated until the run ends
    remote_status  the status of a run on this machine, through its HTTP port
    auto_interval  H and P of `sync.every = "auto"`, chosen before the start
    step_probe     measurement of a step, on the devices of an island
    hub_links      measurement of the links that a run uses, within seconds
    region_shares  the shares of the shards in each region; readers of the public corpus
    link_check     comparison of the measured links with what a run sends
    corpus_check   the check of each region's corpus on a node of that region
    cluster_checks  checks of regions and addresses against the nodes
    links          measurements of the links between nodes
    link_findings  the settings that limit those links
    run_list       the runs of a folder, with their owner, progress and cost
    cluster_runs   the live runs of a cluster
    cluster_queue  the queue of a cluster, asked from a terminal
    run_findings   what is wrong with a run, why, and what to do; pure
    causes         the cause behind the reason of an island's state; pure
    run_facts      the facts about a run, from its directory
    cluster_findings  what is wrong with a cluster's nodes, versions and clocks; pure
    cluster_health    the health of a cluster, measured by a task on each node
    wan_settings   settings of the kernel and of Ray for nodes joined by a long link
    verify         a check of all files of a run
    page_link      a link to the live page of a run on this machine
    backup         a copy of a run's directory, also of a live run
    resume_state   the state from which a run would restart
    chaos          faults injected from another terminal, by a plan or at random
"""
