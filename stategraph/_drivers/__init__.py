"""The loops that execute the commands of the engine: `drive` blocks, `adrive` awaits. They decide nothing."""
