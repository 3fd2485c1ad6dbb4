"""How fast it is, beside what it is compared with: both in one run, in turns, on the same servers.

Absolute figures of a shared machine move several fold from run to run; the ratio of two neighbouring slices does not.
So every comparison alternates short slices of ours and of its baseline and reports the median of the paired ratios,
with the lowest and the highest. A baseline does the same work with the same settings; one that is slower than it need
be is a defect of the bench.
"""
