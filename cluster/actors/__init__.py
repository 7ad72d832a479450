"""The processes of a run, as actors of Ray around the plain classes of the rooms below.

`fleet`, `launch` and `bench` come in. All that knows that there is Ray is here and with them: a
typed handle for each untyped one, errors told apart by type, nothing retried by Ray.

    syncer     the actor of the syncer: one event loop around `syncer.shell`
    snapshot_writer  how the syncer writes its snapshots, one at a time
    shard      the actor of a shard: it calls the learners, merges, stores and publishes
    parts      a shard's questions to the hosts of an island of several
    ranges     what a shard has for them: a range of a fragment to each
    hosts      hosts that compute as one, as actors: the first one starts the others
    gang       ... of an island: its way to them, and what each of them is
    island     the actor of an island: its process, and the calls that the run makes of it
    evaluator  the actor of the evaluator
    evaluator_hosts  ... of several hosts: they judge as one
    conductor  conducts rings of islands that sum gradients: what these call
    ring       what fleet and people call: the actor in the syncer's place, a `Conductor`
    ring_ports   what a conductor reaches: the islands of its rings, and where they meet
    ring_island  the actor of an island in a ring
    ring_link  its way to the conductor, the fleet and the other islands
    ports      what the syncer reaches: `syncer.ports` over Ray
    link       what a learner reaches: syncer, shards and fleet, over Ray
    sharing    a shard's public fragments in the object store, once for all who join
    public_fragments  what a shard answers to learners that ask for fragments or differences
    fragment_reader  how a learner or an evaluator asks for them, whole or by range
    giving     the moments of an island in the object store, cut for who joins
    fetching   how a learner pulls what is large: bit by bit, for as long as something comes
    directory  handles of a run's actors, looked up by name
    start      how each actor is started, found and ended, with its options
    calls      what Ray raises where a call should have been answered, told apart by type
    handed     is what an island says and sends what the protocol has words for?
    inject     what a process does to itself when a fault is injected
    again      how a process of the core ends so that Ray restarts it
"""
