"""The command `zbench check`: whether other people's losses, attention and schedules are exact (docs/check.md)."""
