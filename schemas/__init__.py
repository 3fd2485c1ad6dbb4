"""What crosses a border: triggers, HTTP bodies, the subsets of vendors' shapes we read. Imports nothing of ours."""
