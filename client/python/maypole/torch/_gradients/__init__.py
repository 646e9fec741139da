"""What maypole.torch._reduction is made of: the gradients of one DistributedOptimizer, and what ranks know of them.

- Where a gradient is computed, read and set: parameters, guards, hooks, callers.
- What is done with one, and where it lies in memory: reducer, buckets, layouts.
- What earlier steps have taught the ranks: learned.
- What is compared before ranks step: equal_start, same_step, sums, changes.
"""
