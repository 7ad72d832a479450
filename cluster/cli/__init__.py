"""What people type and see: commands, live table, summary.

Nobody imports this room. A command reads its arguments, hands over at once, and prints what comes
back; nothing is decided here. Ray and JAX are imported by the commands that need them, when they
do, so that `--help` and a refused configuration are there at once.

    main      the console script: registers the commands, turns errors into exit codes
    training  run, submit, and the job that a submitted run is
    steering  scale, drain, chaos, save, stop
    watching  status and top
    proof     replay and simulate
    clusters  what is shown of clusters with no machines
    studying  study
    bench     bench, and the switches of each figure
    options   what several commands have in common
    display   the live table, and lines for what happens
    summary   the tables that a run and a bench end with
    figures   figures in words: durations, amounts, shares
"""
