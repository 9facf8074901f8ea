"""The networks: encoders of data, the latent emulator of parameters, standardisation."""
