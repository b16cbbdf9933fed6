"""The run file: all measurements of a run, and the device and settings they belong to.

schema.sql   the tables
commands     the device commands of recorded steps, with their times
checks       what the values of a run file may be
writer       writes the file during the run; after a crash, everything committed can still be read
reader       reads the file and returns rows as records
rows         the records: one class per table
alive        whether the process that writes a file still runs
record       the base class of all records, and their JSON form
"""
