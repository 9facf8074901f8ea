"""From prior and simulator to simulations: making them, holding them, reading views of them."""
