"""What `maypole-timeline` does (docs/timeline.md).

Reads the file of a job's timeline, says which ranks were late for what, and
draws it.
"""
