"""Tables in the fault simulation: their servers are actors, each of which lags behind the server that decides.

The parts under test are the shipped ones: `RowServers` and its `TableLink`s at the head, `TableServer` and its `RowTables` in an
actor, places in shared memory, and the sources through which a worker writes keys and gradients there. Pipes between the
head and a table server, and from a worker to the head, keep their order and lose nothing. Only their delay is drawn.

| file       | what it is                                                                                   |
| ---------- | -------------------------------------------------------------------------------------------- |
| actor.py   | a table server and its pipe                                                                  |
| desk.py    | what a worker writes and reads in its places                                                 |
| process.py | a worker that pulls rows, once or twice a contribution, asks ahead, and is called off or dies |
| rows.py    | what a run with tables has beside these: memory, folders                                      |
| server.py  | the head; its checkpoints, from which other numbers of table servers go on                   |
| reborn.py  | the one server, which holds the rows itself, and is reborn with them                         |
| judge.py   | rows as dicts, and as one process without lag holds them; raises at the first difference     |
"""
