"""What several tests share, by subject: models with known answers, written files, small stores."""
