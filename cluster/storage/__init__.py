"""The durable state of a run, on disk or in a bucket: tape, snapshots, fragments, owner.

Every package above imports this one. Every file names the run that it belongs to and carries a
checksum; a damaged file is refused, with the place and the reason. Names and formats are a
contract.

    depot          the protocol of a durable store, from which a run recovers
    folder         a depot in a folder
    bucket         a depot in a bucket
    limited_calls  calls of a storage that may hang, each with a timeout
    limited_depot  a depot whose calls have a timeout
    open_depot     opens a run's depot, with retries if it cannot be reached
    store_check    whether a run can begin in its stores
    ownership      the right to write there: one fleet at a time, by number
    pids           whether a process of this machine is alive, and not another one with its number
    runs           run directories: chosen, found, reached, resumed
    binding_settings  the settings that a run keeps when it is resumed
    stored_interval  the H and P that a run with `sync.every = "auto"` has chosen
    run_files      the name and the content of each file of a run
    fleet_file     `fleet.json`: the part of a fleet's state that outlives its process
    tape           the write-ahead log of events, in segments
    segment_queue  bytes of a tape that wait to be written
    segments       the files of a tape, and places on it
    playback       reads a tape from a place on, row by row
    state_history  the states of a run, computed again from its tape
    snapshots      `state.json`: the rules' state and the measures at one moment; deletes old ones
    ladder         kept states of earlier hours and days, and going back to one
    rungs          the names of those states, and the versions that must stay stored for them
    identity       `identity.json`: a unique name of the run, which its fragments carry
    fragments      the newest versions of each fragment, one file each
    contributions  contributions as they were handed in, if they are kept
    layout         `layout.json` and its copy: how the model is cut
    model_file     the exported model, and its fingerprint
    sealed         arrays in one safetensors file with a checksum
    metrics_log    `metrics.jsonl`: status lines of a run, limited in size
    line_thinning  which lines of a full metrics log stay
    files          files that are replaced as a whole; JSON without NaN
    lines          files of lines, which wait in memory until they are flushed
    format         the number of the format, and errors of files
"""
