"""Islands of several hosts: the first host gives orders, and the others carry them out.

Modules:

    publication_lanes  the adoption of each fragment's publications, on a thread of its own
    orders             the first host's orders to the others, and their answers
    lead               the first host's side: orders to the other hosts, and their progress
    host_life          one life on a host that is not the first: parts, copies, versions
    follower           a host that is not the first: it does what the first one does, at the
                       same boundary
"""
