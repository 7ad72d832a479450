"""Reports and timelines of runs, from the files that they leave.

A live, ended or crashed run has what its files have; a damaged file costs only its part.

    run_record       the files of a run, read line by line
    stage_facts      the facts of a run for the stages of a roll-out
    stage_faults     its drains, kills and cuts, and the contributions after them
    contents         a report as data: sections, tables, charts
    curves           the charts of runs
    run_tables       the tables of runs: figures, islands, ledger, events
    config_tables    configurations and their differences
    run_report       the report of one run or of several, side by side
    study_report     the report of a study
    page             a report as one HTML file
    markdown         a report as Markdown, for a pull request
    timeline         the events of a Chrome trace
    tape_timeline    the timeline of a run from its tape: islands, syncer, shards
    metrics_timeline  the parts of a timeline that metrics.jsonl and events.jsonl have
    written          reports as files of a limited size
    trace            the timeline of a run as a file for Perfetto
"""
