"""What is on disk or in a bucket: tape, snapshots, fragments, the run directory, who owns it.

Everybody above may come in. Every file says what run it belongs to and carries a checksum; a
damaged one is refused with the place and the reason. Names and formats are a contract.

    depot          the protocol of a store that a run comes back from
    folder         a depot in a folder
    bucket         a depot in a bucket
    open_depot     opens a run's depot, and waits for one that cannot be had at present
    ownership      who may write there: one fleet at a time, by number
    pids           is a process of this machine still there, and the one that is meant?
    runs           run directories: chosen, found, reached, resumed
    fleet_file     `fleet.json`: what outlasts the process of a fleet
    tape           the write-ahead log of events, in segments
    segment_queue  bytes of a tape that wait to be written
    segments       the files of a tape, and places on it
    playback       a tape read from a place on, row by row
    state_history  the states of a run, had again from its tape
    snapshots      `state.json`: the rules' state and the measures of a moment; which old ones
                   go
    identity       `identity.json`: a name of the run, which its fragments carry
    fragments      the newest versions of each fragment, one file each
    contributions  what was merged, as it came, if that is kept
    layout         `layout.json`: how the model is cut
    model_file     the model as people get it, and its fingerprint
    sealed         arrays in one safetensors file with a checksum
    metrics_log    `metrics.jsonl`: what a run said of itself, never longer than it may be
    files          files that are replaced as a whole; JSON without NaN
    lines          files of lines, which wait in memory until they are flushed
    format         the format's number, and what is wrong with a file
"""
