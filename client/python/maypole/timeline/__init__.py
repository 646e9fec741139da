"""What `maypole-timeline` does: reads the file of a job's timeline, says which
ranks were late for what, and draws it (docs/timeline.md)."""
