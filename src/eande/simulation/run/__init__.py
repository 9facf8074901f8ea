"""Running a simulator: blocks, executors, workers."""
