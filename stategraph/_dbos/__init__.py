"""The parts of DBOSRunner, which runs turns on DBOS."""

try:
    import dbos as dbos
except ModuleNotFoundError as error:
    if error.name != "dbos":
        raise
    raise ModuleNotFoundError('DBOSRunner needs DBOS: pip install "durable-stategraph[dbos]"', name="dbos") from error
