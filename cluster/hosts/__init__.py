"""Islands of several hosts: the connections between the hosts, and the ports that they hold.

Modules:

    gang          the hosts of one island: how they meet, and how orders reach them
    first_part    the first host's part of a contribution, and where the other parts are
    news_threads  the threads that handle publications and notices of discarded contributions
    held_port     a port that is reserved for a server that starts later
"""
