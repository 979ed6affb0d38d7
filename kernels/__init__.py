"""Step state of many serving instances in NumPy arrays, and the functions that advance it, one per phase.

A *lane* is one instance of one configuration. All lanes of a batch advance together. Imports go down this list only
(tests/engine/test_owners.py):

    engine                          the driver: loops over the phases, retires lanes
    phases                          the table of phases, for each kind of instance
    waking, routing, growing, ordering, admitting, entering, prefilling, finishing, finishing_ahead, leaping,
    sharing, listed_steps
                                    one phase each
    repeated_prefills, starting     what several phases do
    lines, order_changes, itl, logging_steps, totals, observation
                                    what is computed or written down of a batch
    batch                           the lanes: their records, and facts about all of them
    memory, reserved_memory         records, each with its one owner ...
    clock, counters, decodes, inflow, pool, prefills, prefix_cache, router, running_list, step_times, waiting_queue
    step_tables                     ... what they are made of ...
    params, request_rows, request_times, steplog, slots, residues, bitset, chains, itl_bins, ranges, records
                                    ... and what that is
    arrays, rules, steptime

Letters in shapes:

    L  lanes            M  slots for decoding requests of a lane (grows)      W  workloads that lanes share
    N  requests         B  largest block size of the batch                    S  places for preempted requests
    Q  queues           R  queues in a service order                          G  groups of lanes behind a router
"""
