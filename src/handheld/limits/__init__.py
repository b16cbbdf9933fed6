"""Memory limits: decides what a plan computes again, so that it fits.

ledger     the values of a graph that can be dropped, and what each would cost
simulate   memory and time for a choice of dropped values
chain      the best choice if the values formed a chain, by dynamic programming
search     a choice for a limit: the chain's, improved on the graph itself
repeats    the computations that a choice adds to a step
pieces     values that are computed in pieces, where nothing else is enough
bottleneck what keeps a plan from being smaller
parts      a batch in parts (micro-batches), where that gives the same update
planning   a plan within a limit, or the smallest limit that can be met
curve      time over memory, and the largest batch for a limit
"""
