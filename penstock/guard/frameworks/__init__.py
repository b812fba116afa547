"""How each framework takes a step in parts, one file per framework. Importing a file imports its framework."""
