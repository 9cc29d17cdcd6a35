"""Features that meet, through the real command line: a table of pairs, a row a case."""
