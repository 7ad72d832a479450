"""Large arrays in Ray's object store: published once, pulled in parts, by range.

Modules:

    ranges           what a shard has for them: a range of a fragment to each
    publish          a shard's public fragments in the object store, once for all who join
    fragment_reader  how a learner or an evaluator asks for them, whole or by range
    moment_pieces    the moments of an island in the object store, cut for who joins
    pull             how a learner pulls what is large: bit by bit, for as long as something
                     comes
"""
