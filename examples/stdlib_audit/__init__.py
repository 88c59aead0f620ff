"""The parts of `audit_stdlib`: what its nodes compute, as functions of plain data, and its demonstration."""
