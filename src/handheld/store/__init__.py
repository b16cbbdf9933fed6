"""The run file: everything that was measured, and what it was measured on.

schema.sql   its tables, version by version
commands     what a device was told and when it did it: the records of recorded steps
writer       writes it as things happen: what a killed process had committed still opens
reader       reads it: rows as records
rows         the records: one per table
record       what all records have in common, and how they become JSON
"""
