"""The parts of maypole.torch._reduction: the gradients of one DistributedOptimizer, and what ranks know about them.

- Where a gradient is computed, read and set: parameters, guards, hooks, callers.
- How a gradient is reduced, and where it is in memory: reducer, buckets, layouts.
- What the ranks have learned from earlier steps: learned.
- What the ranks compare before they step: equal_start, same_step, sums, changes.
"""
