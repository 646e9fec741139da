"""What the estimators have in common."""
