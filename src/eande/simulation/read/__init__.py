"""Reading simulations: in memory, from stores and files, in views."""
