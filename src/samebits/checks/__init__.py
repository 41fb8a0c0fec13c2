"""What the ranks of one artifact must have alike."""
