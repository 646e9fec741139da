"""Settings of a job, and what they are made of."""
