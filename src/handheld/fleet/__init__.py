"""Many devices that work side by side: each runs an ordinary command in its own process, into its own folder.

    fleet.toml ──► file: devices, groups, limits
                     │ run: a process per device (cli/member.py), its limits, its progress
                     ▼
                   folder: fleet.json, a results folder per device
                     │ figures: what each device measured
                     │ page: ranks devices, and shows what trains where
                     ▼
                   publish: a copy to share, without names of people and machines; merge: joins such folders

| module | content |
|---|---|
| lines | finds the line of a key in a TOML text, for messages |
| file | reads and checks the fleet file |
| reach | which devices answer, and which are found on this machine |
| gauges | the temperature and battery of each device, and whether they are within its limits |
| run | starts, watches and stops the processes |
| folder | the folder of a fleet: what was asked for, and how far each device is |
| figures | the figures of each device, from the results of any command |
| page | the page of a fleet |
| publish | copies results for others, and joins the results of others |
"""
