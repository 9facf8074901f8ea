"""Running a simulator: blocks, jobs, workers, executors, the scheduler."""
