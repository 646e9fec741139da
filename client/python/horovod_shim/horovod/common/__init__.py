"""What all frameworks have in common."""
