"""What scripts take from Horovod's launcher."""
