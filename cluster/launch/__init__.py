"""From a configuration to a running program and back: start, reach, watch, end.

`cli` and `bench` come in. The terminal's process owns what it starts: whatever happens, that is
stopped, and nothing else is.

    preflight      all that can be found wrong before anything is started, told at once
    run            one run from its start to its end, owned by this process or by its fleet
    job            a run as a job of a Ray cluster
    ray_cluster    an embedded Ray, or one that is there already
    connect        joins a Ray cluster that is there already
    interrupts     Ctrl-C and SIGTERM, heard and passed on
    exit_message   says how to go on if this process is ended by Ray
    client         speaks to a run from another terminal: status, stop, scale, drain
    status_stream  the status of a run again and again, until the run ends
    remote_status  the status of a run of this machine, by its HTTP port
    chaos          breaks a run from another terminal, by a plan or by chance
"""
