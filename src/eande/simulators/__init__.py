"""Simulators that bring their prior and, where it is known, their exact posterior."""
