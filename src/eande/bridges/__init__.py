"""To and from neighbouring libraries, one file each."""
