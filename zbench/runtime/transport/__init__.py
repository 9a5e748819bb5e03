"""Messages between ranks while a program runs: gloo and NCCL."""
