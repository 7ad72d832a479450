"""The command line: commands, live table, summary.

Nobody imports this room. A command reads its arguments, hands over at once, and prints what comes
back; nothing is decided here. Ray and JAX are imported by the commands that need them, when they
do, so that `--help` and a refused configuration are there at once.

    main             the console script: registers the commands, turns errors into exit codes
    start            init, demo, dashboards
    train            run, submit, and the job that a submitted run is
    control          scale, drain, chaos, save, stop
    watch            status and top
    replay           replay
    simulate         simulate
    planning         plan, and what `simulate` says of clusters with no machines
    planning_tables  the tables that both print
    study            study
    bench            the group of commands `bench`
    bench_learning   bench parity, bench wire
    bench_faults     bench recovery, bench faults, bench calibrate
    bench_costs      bench merge, scale, overhead, large, accelerator
    bench_output     the figures of a bench, as JSON or as tables
    options          what several commands have in common
    display          the display of a run that goes on
    live_table       the live table of a run
    status_lines     how a run stands, and what has happened in it, as lines of text
    tables           the tables that a run and a bench end with
    formatting       figures in words: durations, amounts, shares
"""
