"""Gemma 3 and Gemma 4 as plain functions on plain dictionaries, without a library of layers.

Modules:

    spec          the shape of a model: sizes, pattern of layers, features
    presets       small models for bytes, and the published shapes
    parameters    shapes, initial values and shardings of the leaves
    layers        norms, rotary positions, attention, gated MLP, embeddings per layer
    experts       the mixture of experts: router, experts, load-balance loss
    forward       tokens to logits
    loss          the mean nats per predicted token, with the logits in parts if asked
    decoder       the model one token at a time, with the keys and values of the tokens before
    language_task  the task of such a model on a corpus, for `task.preset`
    hf_config     a configuration of transformers as such a shape, and back
    hf_rope       its rotary positions
    hf_weights    weights by the names of transformers, both ways
    hf_folder     a folder of transformers as the source of initial parameters
    hf_limits     the shapes that transformers cannot have, load or compute
    byte_models   the byte models as such shapes, for their costs
    costs         parameters, memory and operations of a model, from its shape alone
"""
