"""What running out of memory looks like, one file per framework."""
