"""What people type and see: commands, live table, summary.

Nobody imports this room. A command reads its arguments, hands over at once, and prints what comes
back; nothing is decided here. Ray and JAX are imported by the commands that need them, when they
do, so that `--help` and a refused configuration are there at once.

    main          the console script: registers the commands, turns errors into exit codes
    start         init and demo
    train         run, submit, and the job that a submitted run is
    control       scale, drain, chaos, save, stop
    watch         status and top
    verification  replay and simulate
    planning      what is shown of clusters with no machines
    study         study
    bench         bench, and the switches of each figure
    options       what several commands have in common
    live_table    the live table, and lines for what happens
    tables        the tables that a run and a bench end with
    formatting    figures in words: durations, amounts, shares
"""
