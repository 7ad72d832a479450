"""Large arrays in Ray's object store: published once, pulled in parts, by range.

Modules:

    ranges           ranges of a shard's differences and moments, for one host each
    publish          a shard's public fragments in the object store, once for all joining learners
    fragment_reader  requests of a learner or an evaluator for fragments, whole or by range
    moment_pieces    the moments of an island in the object store, cut for the hosts that want them
    pull             the pulling of large objects in parts, for as long as there is progress
"""
