"""Islands of several hosts: connections between the hosts, and the ports that they hold.

Modules:

    gang          the hosts of one island: who they are, and how orders get to them
    first_part    the first host's part of a contribution, and who has the others
    news_threads  the threads on which they hear of publications and discarded contributions
    held_port     a port that is held for a server that begins later
"""
