"""The field's common benchmark, sbibm: five tasks with samples of the exact posteriors."""
