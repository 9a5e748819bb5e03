"""Other projects' data parallelism beside zbench's: DDP, FSDP2 and DeepSpeed's ZeRO train what its step executes."""
