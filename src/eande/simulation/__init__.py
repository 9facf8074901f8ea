"""From a simulator to simulations: run, then store, then read; simulate uses all three.

Each folder imports only those before it: ``run`` (blocks, jobs, workers, executors, scheduler),
``store`` (shards, commits, provenance, the store), ``read`` (sources, readers, views,
:class:`~eande.Simulations`). ``collect`` and ``simulate`` come last.
"""
