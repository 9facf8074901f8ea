"""The method itself: priors, networks, similarity, losses, the model and its posterior. Needs torch and safetensors only."""
