"""How each library does the work of the rows: the fastest way its documentation shows, with tracing off."""
