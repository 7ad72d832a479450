"""Tasks from models of Flax NNX, Flax Linen and Equinox; each library is imported when it is used.

An adapter divides a model into parameters and state, which are trees of float32 arrays by path, and
a static rest that each process makes for itself. Random keys come from the key of the step.

Modules:

    nnx_models      tasks of Flax NNX models
    linen_models    tasks of Flax Linen modules
    equinox_models  tasks of Equinox models
    model_parts     the parts of a model as a task of text or of examples
    value_origins   the origins of each result of a traced function
    leaf_trees      trees of dictionaries, built from leaves by path and read back
"""
