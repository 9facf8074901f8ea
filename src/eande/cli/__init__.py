"""The command line: one file per command, put together in :mod:`eande.cli.app`."""
