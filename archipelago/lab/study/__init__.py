"""`archipelago study`: a grid of runs in virtual time, paired by seed, kept and taken up again.

`cli` and `bench` come in. Whoever plans and sums up needs no JAX; cells are trained in processes of
their own, on one thread each.

    plan               STUDY.toml: a study, and the cells that it is
    study_file         the tables of STUDY.toml beside its base configuration
    grid               the points that axes make in each arm, with a cell for each seed
    cells              a cell is a file, found again by its configuration's hash, with its
                       command
    training_jobs      trains what is missing, on all cores
    paired_statistics  means, and intervals of differences by seed
    result             what a study comes to: a row for each point of each arm
    text               the table and the curves as text
    pictures           the same as SVG, if matplotlib is there
"""
