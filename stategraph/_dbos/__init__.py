"""What DBOSRunner is made of: each module has one part of what it takes to give turns to DBOS."""

try:
    import dbos as dbos
except ModuleNotFoundError as error:
    if error.name != "dbos":
        raise
    raise ModuleNotFoundError('DBOSRunner needs DBOS: pip install ".[dbos]"', name="dbos") from error
