"""`archipelago study`: a grid of runs in virtual time, paired by seed, stored and resumed.

`cli` and `bench` may import this package. Planning and summing up need no JAX; cells are trained in
separate processes, on one thread each.

    plan               STUDY.toml: a study and its cells
    study_file         the tables of STUDY.toml beside its base configuration
    grid               the points that axes make in each arm, with a cell for each seed
    measures           the measure of a study, and which of its values are better
    task_metrics       the metrics of the tasks of a study, for a measure of a user's own
    cells              a cell as a file, named by the hash of its configuration, with its
                       command
    training_jobs      trains the missing cells, on all cores
    paired_statistics  means, and intervals of differences by seed
    result             the result of a study: a row for each point of each arm
    text               the table and the curves as text
    pictures           the same as SVG, if matplotlib is installed
"""
