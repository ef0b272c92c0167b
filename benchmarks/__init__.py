"""The fixed benchmark suite, its runs, and the tables and pictures made from their results."""
