"""Step state of many serving instances in NumPy arrays, and the functions that advance it, one per phase.

A *lane* is one instance of one configuration. All lanes of a batch advance together; letters in shapes:

    L  lanes            M  slots for decoding requests of a lane (grows)      W  workloads that lanes share
    N  requests         B  largest block size of the batch                    S  places for preempted requests
"""
