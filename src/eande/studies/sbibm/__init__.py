"""The field's common benchmark, sbibm: ten tasks with samples of the exact posteriors."""
