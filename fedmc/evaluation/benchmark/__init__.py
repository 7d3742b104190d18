"""A benchmark that others can enter: tasks with fixed splits, a process without the answers, results as JSON."""
