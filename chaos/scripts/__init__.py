"""Programs to break, as people write them: none of them knows of Harness."""
