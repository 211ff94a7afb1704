"""The head's host may die: a standby on another one has its log, and goes on (docs/decisions/0020-standby.md)."""
