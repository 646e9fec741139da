"""The comparison with the peers: see ../compare.py."""
