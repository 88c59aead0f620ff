"""The loops that carry out what the engine asks for: `drive` blocks, `adrive` awaits. They decide nothing."""
