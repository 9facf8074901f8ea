"""The sections of a report, one file each: a function of what was given that returns one."""
