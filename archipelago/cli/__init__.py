"""The command line: commands, live table, summary.

No other package imports this one. A command reads its arguments, calls the code below and prints
the result; it decides nothing. A command imports Ray and JAX only when it needs them, so that
`--help` and the errors of a configuration appear at once.

    main             the console script: registers the commands, turns errors into exit codes
    start            init, demo
    dashboards       dashboards
    train            run, and the job of a submitted run
    submit           submit
    run_header       the lines that a run prints before it trains
    control          scale, drain, chaos, save, stop
    export           export
    use_model        sample and eval
    audit            audit
    stage            stage
    watch            status, top and page
    replay           replay
    report           report and trace
    simulate         simulate
    planning         plan, and the parts of `simulate` about simulated clusters of chips
    planning_tables  the tables that both print
    study            study
    model            model
    bench            the group of commands `bench`
    bench_learning   bench parity, bench wire
    bench_faults     bench recovery, bench faults, bench calibrate
    bench_costs      bench merge, scale, overhead, large, accelerator
    bench_wan        bench wan
    bench_output     the figures of a bench, as JSON or as tables
    listing          list
    queueing         queue
    doctor           doctor
    data             the group of commands `data`
    questions        data questions
    keep             verify and backup
    wan              the group of commands `wan`
    manifest         the group of commands `manifest`
    options          the application, and the options of several commands
    link_lines       the troubles of links, as lines of text
    display          the display of a live run
    live_table       the live table of a run
    table_view       which islands a table shows, and in which order
    fragment_lines   the fragments in the live table
    terminal_keys    the keys that are pressed in a terminal
    status_lines     the status and the events of a run, as lines of text
    tables           the tables at the end of a run and of a bench
    formatting       figures as text: durations, amounts, shares
"""
